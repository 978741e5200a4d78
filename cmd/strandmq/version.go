package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// versionText is the version of this binary: the module's, or the revision that
// it was built from.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "development"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "development-" + s.Value[:12]
		}
	}
	return "development"
}

// build is what this program was built from.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	var server bool
	c := command(&cobra.Command{
		Use:   "version",
		Short: "Print this program's version, and with --of-server the broker's",
		Example: `  strandmq version
  strandmq version --of-server --output json`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if !server {
			own := build{versionText(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if a.json() {
				out := json.NewEncoder(a.out)
				out.SetIndent("", "  ")
				return out.Encode(own)
			}
			a.facts("version", own.Version, "go", own.Go, "platform", own.Platform)
			return nil
		}
		res, err := ask(cmd.Context(), a.dial().node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			a.facts("version", res.GetVersion(), "cluster", res.GetCluster(), "started", stamp(res.GetStarted()))
			for _, f := range res.GetFaults() {
				a.facts("fault", f)
			}
			return nil
		})
	})
	c.Flags().BoolVar(&server, "of-server", false, "ask the broker instead")
	return c
}
