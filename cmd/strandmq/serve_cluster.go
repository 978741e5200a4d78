package main

import (
	"net"

	"github.com/spf13/pflag"

	"github.com/strandmq/strandmq/internal/broker"
)

// clusterFlags are what serve is told of other nodes.
type clusterFlags struct {
	listen, address, join, token, zone string
}

func (f *clusterFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.listen, "peer-listen", "", "address and port for other nodes: the broker is a node of a cluster")
	fl.StringVar(&f.address, "peer-address", "", "where other nodes reach this one, if not at --peer-listen")
	fl.StringVar(&f.join, "join", "", "join a cluster at the first start: the --peer-listen of one of its nodes")
	fl.StringVar(&f.token, "join-token", "", "the token to join with, which lets one node in")
	fl.StringVar(&f.zone, "zone", "", "what fails together with this node: replicas are spread over zones")
}

// config is what the flags say of other nodes; nil: nothing.
func (f *clusterFlags) config() (*broker.ClusterConfig, error) {
	token := f.token
	if token == "" {
		token = env("STRANDMQ_JOIN_TOKEN", "") // not as a default, which help would show
	}
	switch {
	case f.join != "" && token == "":
		return nil, usagef("--join needs --join-token: 'strandmq cluster token' at the cluster makes one")
	case f.join != "" && f.listen == "":
		return nil, usagef("--join needs --peer-listen: the other nodes have to reach this one")
	case f.join != "" && !isHostPort(f.join):
		return nil, usagef("--join %q is not an address and port: give the --peer-listen of one of the cluster's nodes, such as 127.0.0.1:7271", f.join)
	case f.token != "" && f.join == "":
		return nil, usagef("--join-token needs --join: which node is to let this one in")
	case *f == clusterFlags{}:
		return nil, nil //nolint:nilnil // alone, unless its folder says otherwise
	}
	return &broker.ClusterConfig{Listen: f.listen, Address: f.address, Join: f.join, Token: token, Zone: f.zone}, nil
}

// isHostPort tells whether a text is a host and a port.
func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	return err == nil && host != "" && port != ""
}
