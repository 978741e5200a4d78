package broker

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// everyOrigin is the allowed origin that stands for all.
const everyOrigin = "*"

// guests are the other origins whose pages may publish and consume: they get
// the answers of CORS, and are not taken for cross-site requests. What else the
// port serves is not for them, the calls that create, delete and look at things
// included: a page that is let in to publish has no need to delete topics, and
// before there are access tokens nothing else would keep it from that. Nor are
// cookies or other credentials of the browser ever let along.
type guests struct{ cors *cors.Cors }

// newGuests is nil when there are none.
func newGuests(origins []string) *guests {
	if len(origins) == 0 {
		return nil
	}
	return &guests{cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodPost},
		AllowedHeaders: append(connectcors.AllowedHeaders(), requestHeader, parentHeader, stateHeader),
		ExposedHeaders: append(connectcors.ExposedHeaders(), requestHeader),
		MaxAge:         600, // seconds; a list that was shortened is also held by each call itself
	})}
}

// open are the paths that guests may call.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var open = pathsOf(strandmqv1connect.PublishServiceName, strandmqv1connect.ConsumeServiceName)

func pathsOf(services ...string) map[string]bool {
	paths := map[string]bool{}
	for _, s := range services {
		for m := range methodsOf(s) {
			paths["/"+s+"/"+string(m.Name())] = true
		}
	}
	return paths
}

// greet writes the headers of CORS. It answers a guest's preflight, and tells
// whether the request is of a guest who may make it.
func (g *guests) greet(w http.ResponseWriter, r *http.Request) (answered, welcome bool) {
	if g == nil || !open[r.URL.Path] {
		return false, false
	}
	if !g.cors.OriginAllowed(r) {
		w.Header().Add("Vary", "Origin") // another origin would get another answer
		return false, false
	}
	g.cors.HandlerFunc(w, r)
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "", true
}

// refusal is what a page of another origin is told.
func (g *guests) refusal(r *http.Request) *refusal {
	const text = "this request comes from a web page of another origin, which may not use the broker"
	switch origin := r.Header.Get("Origin"); {
	case origin == "":
	case g != nil && g.cors.OriginAllowed(r):
		return refuse("CROSS_ORIGIN", "Origin", "this request comes from a web page of another origin, %s, which may publish and consume, and call nothing else", plain.Quote(origin))
	case open[r.URL.Path]:
		return refuse("CROSS_ORIGIN", "Origin", "%s: to let pages of %s publish and consume, start the broker with --allow-origin", text, plain.Quote(origin))
	}
	return refuse("CROSS_ORIGIN", "Origin", text)
}

// checkOrigins takes what a browser may send as Origin, and "*" alone.
func checkOrigins(origins []string) (faults []error) {
	for _, o := range origins {
		if o == everyOrigin {
			if len(origins) > 1 {
				faults = append(faults, errors.New("allowed origin: * is every origin, so it stands alone: leave it out, or the others"))
			}
			continue
		}
		if err := checkOrigin(o); err != nil {
			faults = append(faults, fmt.Errorf("allowed origin: %s %w", plain.Quote(o), err))
		}
	}
	return faults
}

// checkOrigin holds an origin to the one spelling that browsers use: scheme,
// host, and the port unless it is the scheme's own. Another one would never
// match, and nobody would see why.
func checkOrigin(origin string) error {
	const like = "https://app.example.org or http://localhost:5173"
	if strings.Contains(origin, "*") {
		return fmt.Errorf("is a pattern: name each origin by itself, such as %s", like)
	}
	u, err := url.Parse(origin)
	switch {
	case err != nil || u.Scheme == "" || u.Hostname() == "":
		return fmt.Errorf("is no origin such as %s", like)
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("is neither of http nor of https")
	case u.Port() != "" && !isPort(u.Port()):
		return errors.New("has a port that is none from 1 to 65535")
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r > 127 }):
		return errors.New("has letters that browsers write in another form (xn--...) there: write it as the browser's Origin header does")
	}
	if name := strings.ToLower(u.Hostname()); net.ParseIP(name) == nil && !hostLetters(name) {
		return errors.New("has no host name such as app.example.org")
	}
	host := strings.ToLower(u.Host)
	if own := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, own) {
		host = strings.TrimSuffix(host, own)
	}
	host = strings.TrimSuffix(host, ":")
	if want := u.Scheme + "://" + host; origin != want {
		return fmt.Errorf("is not as browsers send it: an origin is scheme, host and port alone, here %s", plain.Quote(want))
	}
	return nil
}

// hostLetters tells whether all of s may stand in a host's name.
func hostLetters(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	})
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535 && strconv.Itoa(n) == s
}
