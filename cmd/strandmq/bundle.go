package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) debugCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:     "debug",
		Short:   "Gather what helps to find a fault",
		Example: "  strandmq debug bundle",
	}, a.debugBundle())
}

func (a *app) debugBundle() *cobra.Command {
	var file string
	watch := spanFlag{3 * time.Second}
	c := command(&cobra.Command{
		Use:   "bundle",
		Short: "Write a file for whoever helps: state, findings and metrics, without messages",
		Long: `Writes one file with what there is to know about a cluster: versions, nodes, events,
topics, groups, what doctor sees and finds, and the metrics of every node that answers, with
stacks, heap and processor profile of those on this machine that run with serve
--profiles. It has no
bodies, headers, keys or ids of messages, no reasons that handlers gave (they are
numbered instead), no tokens and no certificates. Names of topics, groups and members,
and addresses of nodes, are in it. MANIFEST says what is in it and what is not.

Exit codes: 0 all was asked, 1 something did not answer (the file has the rest), 2 wrong
usage.`,
		Example: `  strandmq debug bundle
  strandmq debug bundle -o /tmp/orders.tar.gz
  strandmq debug bundle -o - | tar tz`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		now := time.Now().UTC()
		name := "strandmq-bundle-" + now.Format("20060102T150405Z")
		if file == "" {
			file = name + ".tar.gz"
		}
		out := a.out
		if file != "-" {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return usagef("%s is there already: name another file with -o", file)
			}
			if err != nil {
				return err
			}
			defer f.Close()
			out = f
		}
		b := newBundle(out, name, a.servers, now)
		err := a.gather(cmd.Context(), b, watch.d)
		if err = errors.Join(err, b.close()); err != nil {
			if file != "-" {
				_ = os.Remove(file) // half of one helps nobody
			}
			return err
		}
		for _, m := range b.missing {
			a.talk("not asked: %s: %s", m.What, m.Why)
		}
		if file != "-" {
			a.talk("%s with %d files, %s unpacked: look through it before you send it", filepath.Base(file), len(b.files), quantity.RoughSize(uint64(b.bytes)))
			fmt.Fprintln(a.out, file)
		}
		if len(b.missing) > 0 {
			return &exit{code: exitFailed}
		}
		return nil
	})
	// Instead of how to print data: there is none.
	c.Flags().StringVarP(&file, "output", "o", "", "the file to write; - is standard output (default strandmq-bundle-TIME.tar.gz)")
	c.Flags().Var(&watch, "watch", "how long to wait between two looks at what counts; 0: look once")
	return c
}

// bundle is the file while it is written.
type bundle struct {
	root    string
	at      time.Time
	hide    *redactor
	zip     *gzip.Writer
	tar     *tar.Writer
	files   []string // with what they are, for the manifest
	missing []doctor.Unreached
	bare    []string // nodes that tell no profiles
	bytes   int
}

func newBundle(out io.Writer, root string, servers []string, at time.Time) *bundle {
	zip := gzip.NewWriter(out)
	return &bundle{root: root, at: at, hide: newRedactor(servers...), zip: zip, tar: tar.NewWriter(zip)}
}

// add writes one file.
func (b *bundle) add(name, what string, content []byte) error {
	content = []byte(b.hide.text(string(content)))
	b.files, b.bytes = append(b.files, fmt.Sprintf("%-40s %s", name, what)), b.bytes+len(content)
	err := b.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(b.root, name), Mode: 0o600, Size: int64(len(content)), ModTime: b.at})
	if err == nil {
		_, err = b.tar.Write(content)
	}
	return err
}

// value writes one as JSON.
func (b *bundle) value(name, what string, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return b.add(name, what, text.Bytes())
}

// message writes an answer of the API, without what is not to leave.
func (b *bundle) message(name, what string, m proto.Message) error {
	m = proto.Clone(m)
	b.hide.message(m)
	raw, err := marshal(m)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, raw, "", "  "); err != nil {
		return err
	}
	text.WriteByte('\n')
	return b.add(name, what, text.Bytes())
}

// without notes what is missing.
func (b *bundle) without(what string, err error) {
	u := doctor.Unreached{What: what, Why: b.hide.text(err.Error())}
	if !slices.Contains(b.missing, u) {
		b.missing = append(b.missing, u)
	}
}

// close writes the manifest and ends the file.
func (b *bundle) close() error {
	var m strings.Builder
	fmt.Fprintf(&m, "StrandMQ debug bundle of %s, by version %s\n\n", b.at.Format(time.RFC3339), versionText())
	m.WriteString("In it:\n")
	for _, f := range b.files {
		m.WriteString("  " + f + "\n")
	}
	m.WriteString("\nDid not answer:\n")
	for _, u := range b.missing {
		m.WriteString("  " + u.What + ": " + u.Why + "\n")
	}
	if len(b.missing) == 0 {
		m.WriteString("  nothing: all was asked\n")
	}
	if len(b.bare) > 0 {
		m.WriteString("\nNo profiles of " + strings.Join(b.bare, ", ") + ": a node that is started with --profiles gives them to programs on its machine.\nSIGQUIT prints its stacks into its log, and ends it.\n")
	}
	m.WriteString(`
Left out on purpose:
  bodies, headers, keys and ids of messages, and reasons that handlers gave: the same text has the same number (key-1, reason-2)
  tokens, certificates and their keys, and values of environment variables that are not addresses or folders

Not to be had over the API; add it by hand:
  the log of each node, and the command line that it was started with
`)
	return errors.Join(b.add("MANIFEST", "this page", []byte(m.String())), b.tar.Close(), b.zip.Close())
}

// gather asks for everything. An error is of writing: what does not answer is noted.
func (a *app) gather(ctx context.Context, b *bundle, watch time.Duration) error {
	if err := b.value("version.json", "the program that wrote this", build{versionText(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}); err != nil {
		return err
	}
	if err := b.value("environment.json", "settings of this program", settings()); err != nil {
		return err
	}
	facts, err := a.inquire(ctx, "", "", watch, time.Minute, true)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		b.without("the broker at "+strings.Join(a.servers, ", "), err)
		return nil
	}
	for _, u := range facts.Unreached {
		b.without(u.What, errors.New(u.Why))
	}
	b.hide.facts(facts)
	if err := b.value("doctor/facts.json", "what doctor saw", facts); err != nil {
		return err
	}
	if err := b.value("doctor/findings.json", "what doctor found", orNone(doctor.Diagnose(facts, doctor.Options{}))); err != nil {
		return err
	}
	q := &inquiry{asked: dialAny(nil, a.servers...), ctx: ctx, patience: answerTime}
	for _, n := range facts.Nodes {
		if n.Answered {
			if err := b.node(q, nodeWord(n.ID), n.API); err != nil {
				return err
			}
		}
	}
	return b.holdings(q, facts)
}

// node adds what one node says of itself.
func (b *bundle) node(q *inquiry, name, server string) error {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	folder := "nodes/" + name + "/"
	if info, err := one(q, dial(server).node.NodeInfo, &strandmqv1.NodeInfoRequest{}); err != nil {
		b.without("node "+name, err)
	} else if err := b.message(folder+"info.json", "its disk, damage, and how it sees others", info); err != nil {
		return err
	}
	for _, page := range []struct {
		path, file, what string
		also             int // a status that is an answer, too
	}{
		{"/metrics", "metrics.txt", "all its metrics", http.StatusOK},
		{"/readyz?verbose", "readyz.txt", "whether it takes calls, and why not", http.StatusServiceUnavailable},
	} {
		text, status, err := fetch(q.ctx, server+page.path)
		if err == nil && status != http.StatusOK && status != page.also {
			err = fmt.Errorf("it answers with status %d", status)
		}
		if err != nil {
			b.without(page.path+" of node "+name, err)
		} else if err := b.add(folder+page.file, page.what, text); err != nil {
			return err
		}
	}
	return b.profiles(q.ctx, name, server, folder)
}

// profiles adds what one node's process does, if it was started to tell.
func (b *bundle) profiles(ctx context.Context, name, server, folder string) error {
	for _, p := range []struct{ path, file, what string }{
		{"goroutine", "goroutines.txt", "what its goroutines do: stacks, counted"},
		{"heap", "heap.pprof", "what is in its memory, by where it came from: go tool pprof -top"},
		{"profile?seconds=1", "cpu.pprof", "where its processor's time went for a second: go tool pprof -top"},
	} {
		text, status, err := fetch(ctx, server+"/debug/pprof/"+p.path)
		switch {
		case err == nil && status == http.StatusNotFound:
			b.bare = append(b.bare, name)
			return nil
		case err == nil && status != http.StatusOK:
			err = fmt.Errorf("it answers with status %d", status)
		}
		if err != nil {
			b.without(p.file+" of node "+name, err)
		} else if err := b.add(folder+p.file, p.what, text); err != nil {
			return err
		}
	}
	return nil
}

// most of a page that is taken.
const mostPage = 32 << 20

// fetch gets a page of a node.
func fetch(ctx context.Context, url string) (page []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime) // a scrape reads from every partition
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	page, err = io.ReadAll(io.LimitReader(res.Body, mostPage))
	return page, res.StatusCode, err
}

// holdings adds the cluster, its events, its topics and its groups.
func (b *bundle) holdings(q *inquiry, facts *doctor.Facts) error {
	if res, err := one(q, q.asked.cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{}); err != nil {
		b.without("the cluster's nodes", err)
	} else if err := b.message("cluster.json", "nodes, what moves, what is stuck", res); err != nil {
		return err
	}
	if res, err := one(q, q.asked.cluster.ListEvents, &strandmqv1.ListEventsRequest{}); err != nil {
		b.without("the events", err)
	} else if err := b.message("events.json", "what the cluster did by itself, the last 1,000", res); err != nil {
		return err
	}
	if res, err := one(q, q.asked.groups.ListGroups, &strandmqv1.ListGroupsRequest{}); err != nil {
		b.without(theGroups, err)
	} else if err := b.message("groups.json", "all groups, with policy and counts", res); err != nil {
		return err
	}
	for _, t := range facts.Topics {
		res, err := one(q, q.asked.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: t.Name})
		if err != nil {
			b.without("topic "+t.Name, err)
		} else if err := b.message("topics/"+t.Name+".json", "settings and partitions", res); err != nil {
			return err
		}
	}
	for i, g := range facts.Groups {
		if i == mostGroups {
			b.without(fmt.Sprintf("%d further groups in detail", len(facts.Groups)-i), errors.New("too many"))
			break
		}
		res, err := one(q, q.asked.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: g.Topic, Group: g.Name})
		if err != nil {
			b.without("group "+g.Name+" of topic "+g.Topic, err)
		} else if err := b.message("groups/"+g.Topic+"/"+g.Name+".json", "members, partitions, what waits", res); err != nil {
			return err
		}
	}
	return nil
}

// settings are the environment's for this program. Of those that may be secrets it is only
// told that they are set.
func settings() map[string]string {
	out := map[string]string{}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case !strings.HasPrefix(name, "STRANDMQ_"):
		case slices.Contains([]string{"STRANDMQ_SERVER", "STRANDMQ_LISTEN", "STRANDMQ_DATA", "STRANDMQ_ALLOW_ORIGIN"}, name):
			out[name] = newRedactor(envList(name)...).text(value)
		default:
			out[name] = "(set)"
		}
	}
	return out
}
