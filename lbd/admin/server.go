package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/peer"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
	"skyserve/lbd/record"
)

// Bounds of what one client may hold up, each with its reason.
const (
	bodyTimeout  = 10 * time.Second // a body is one packet; slower is an attack
	writeTimeout = 30 * time.Second // a week of history over a slow line
	maxWatchers  = 64               // a dashboard each for everybody who is on duty
)

// Replica is a replica with all that the balancer knows of it.
type Replica struct {
	service.ReplicaConfig
	State service.ReplicaState
	// Reason says why it is not ready, or what is unusual about it.
	Reason string
	// View is what the core knows; nil while its model is not known.
	View *core.ReplicaView
	// HitRate is the engine's own prefix hit rate of the last minute.
	HitRate policy.Maybe[float64]
	// DrainedBy is that of telemetry.Worker.
	DrainedBy string
}

// Workers is the set of replicas that the balancer serves.
type Workers interface {
	// Add attaches a replica or updates it; proxy.ErrOlderEpoch when a newer
	// assignment of it is held.
	Add(service.ReplicaConfig) (added bool, err error)
	// Remove detaches one; an epoch of 0 removes whatever is held.
	Remove(id string, epoch uint64) (removed bool, err error)
	// Drain lets one finish what it has; false when it is not known. by is which program
	// wants that, and empty for a person, who overrules programs.
	Drain(id, by string) bool
	// List is sorted by id.
	List() []Replica
}

// Traffic is what the balancer counts.
type Traffic interface {
	View() core.View
	Stats() proxy.Stats
}

// Decisions remembers and streams why requests went where they went.
type Decisions interface {
	Decision(id string) (record.Request, bool)
	// Remembered says how many of them there are.
	Remembered() telemetry.DecisionMemory
	Subscribe() (events <-chan json.RawMessage, cancel func())
}

// HistorySource knows what was carried in each minute. complete is false when
// the points are only what this balancer itself remembers.
type HistorySource interface {
	History(ctx context.Context, sinceMinute int64) (points []telemetry.Point, complete bool, err error)
}

// Options configure the API. All interfaces and Peers are required.
type Options struct {
	// Self names this balancer; Listen and Admin are the addresses it listens on.
	Self      service.BalancerConfig
	Workers   Workers
	Traffic   Traffic
	Decisions Decisions
	// Requests sums up the newest requests that are remembered, at most limit, the
	// newest first; required.
	Requests func(limit int) []telemetry.RequestSummary
	History  HistorySource
	Usage    UsageSource
	// Keys lists the API keys that are good now, without their secrets; nil = none.
	Keys func() []service.APIKey
	// Peers lists the other balancers as last heard of, sorted by id.
	Peers func() []peer.Status
	// Service reads the text of the service.yaml; nil = there is none.
	Service func() ([]byte, error)
	// Reload reads the balancer's configuration again; *telemetry.ReloadRefused
	// when it cannot run with it. nil = it cannot be read again.
	Reload func() (telemetry.Reload, error)
	// Certificate tells of the public listener's certificate: nil, or answering nil,
	// without TLS.
	Certificate func() *telemetry.Certificate
	// Review is what the controller last made of the load; nil, or answering nil,
	// where nothing is known of that.
	Review func() *telemetry.Review
	// Scaling is what the controller did about the number of replicas; likewise.
	Scaling func() *telemetry.Scaling
	// Alerts are the balancer's own, ServiceAlerts those of the service's controller; nil =
	// none.
	Alerts        func() []telemetry.Alert
	ServiceAlerts func() []telemetry.Alert
	// Draining says whether the balancer is about to end; nil = it is not.
	Draining func() bool
	// Registry holds the metrics; nil = none.
	Registry *prometheus.Registry
	// Token must come with every request but /healthz; empty = only this machine
	// reaches the listener, see ListenError.
	Token string
	// AllowCIDRs are networks that replicas may be in although /add_worker would
	// refuse them.
	AllowCIDRs []netip.Prefix
	// Resolve turns a host name into addresses; nil = the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Logger receives changes made by hand; nil = silence.
	Logger *slog.Logger
	// Now tells the time of day; nil = time.Now.
	Now func() time.Time
}

// API is the admin API of one balancer.
type API struct {
	opts     Options
	mux      *http.ServeMux
	csrf     *http.CrossOriginProtection
	watchers atomic.Int32 // of events
	invites  invites
}

// New makes the API.
func New(opts Options) *API {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Resolve == nil {
		opts.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if opts.Registry == nil {
		opts.Registry = prometheus.NewRegistry()
	}
	a := &API{opts: opts, mux: http.NewServeMux(), csrf: http.NewCrossOriginProtection()}
	a.route()
	return a
}

func (a *API) route() {
	a.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	a.mux.HandleFunc("GET /readyz", a.serveReady)
	a.mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.Snapshot()) })
	a.mux.HandleFunc("GET /v1/service", a.serveService)
	a.mux.HandleFunc("GET /v1/history", a.serveHistory)
	a.mux.HandleFunc("GET /v1/usage", a.serveUsage)
	a.mux.HandleFunc("GET /usage", a.serveUsage)
	a.mux.HandleFunc("GET /v1/decisions", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, a.opts.Decisions.Remembered())
	})
	a.mux.HandleFunc("GET /v1/decisions/{request...}", a.serveDecision)
	a.mux.HandleFunc("GET /v1/requests", a.serveRequests)
	a.mux.HandleFunc("GET /v1/events", a.serveEvents)
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(a.opts.Registry, promhttp.HandlerOpts{}))
	a.mux.HandleFunc("POST /reload", a.serveReload)
	a.routeWorkers()
	a.routeInvites()
	a.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	a.mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	a.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	a.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	a.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "the admin API has no "+r.Method+" "+r.URL.Path)
	})
}

// serveReady tells whether the balancer can serve (200, else 503), and all alerts, which fail no
// probe. The public port's /readyz tells strangers nothing of the latter.
func (a *API) serveReady(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	own := s.Balancer(a.opts.Self.ID)
	status := http.StatusServiceUnavailable
	if own.State == string(service.StateReady) {
		status = http.StatusOK
	}
	answer(w, status, struct {
		State  string            `json:"state"`
		Reason string            `json:"reason"`
		Alerts []telemetry.Alert `json:"alerts"`
	}{own.State, own.Reason, s.Alerts})
}

// ServeHTTP lets a request in if it may. Who takes nothing of an answer, or sends
// nothing of a body, is cut off.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, a.opts.Token != "", a.authorized(r))
}

// ServeMember is ServeHTTP for a request whose sender has shown by a certificate that
// the API is its business: it needs no token.
func (a *API) ServeMember(w http.ResponseWriter, r *http.Request) { a.serve(w, r, true, true) }

// Forbid answers somebody who is known, and may ask nothing: 403.
func (a *API) Forbid(w http.ResponseWriter, why string) { refuse(w, http.StatusForbidden, why) }

// serve answers. beyond says that others than this machine may ask, authorized that
// whoever asks may.
func (a *API) serve(w http.ResponseWriter, r *http.Request, beyond, authorized bool) {
	line := http.NewResponseController(w)                            // a writer without deadlines blocks as it likes
	defer func() { _ = line.SetReadDeadline(within(bodyTimeout)) }() // of what nobody has read, which net/http reads
	deadline := within(writeTimeout)
	if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
		deadline = time.Time{} // who asks says for how many seconds
	}
	_ = line.SetWriteDeadline(deadline)
	switch err := a.csrf.Check(r); {
	case err != nil:
		refuse(w, http.StatusForbidden, "a page of another origin may not change anything here")
	case !beyond && !namesLoopback(r.Host):
		// A name that an attacker's DNS points at this machine would make a
		// browser read the API for him.
		refuse(w, http.StatusForbidden, "without a token the admin API is for this machine: host must be localhost or a loopback address, got "+r.Host)
	case !authorized && r.URL.Path != "/healthz":
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "the admin API needs its token: Authorization: Bearer TOKEN")
	default:
		a.mux.ServeHTTP(w, r)
	}
}

// within is the end of a time that begins now. Deadlines are by the machine's clock,
// whatever Options.Now tells.
func within(d time.Duration) time.Time { return time.Now().Add(d) }

func (a *API) authorized(r *http.Request) bool {
	if a.opts.Token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(a.opts.Token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// namesLoopback says whether a host, with or without a port, is this machine.
func namesLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// BeyondLoopback says whether a listen address (host:port) can be reached from
// other machines.
func BeyondLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err != nil || !namesLoopback(host)
}

// serveService answers the service.yaml.
func (a *API) serveService(w http.ResponseWriter, _ *http.Request) {
	if a.opts.Service == nil {
		refuse(w, http.StatusNotFound, "this balancer was started without a service.yaml")
		return
	}
	text, err := a.opts.Service()
	if err != nil {
		a.opts.Logger.Error("reading service.yaml", "err", err)
		refuse(w, http.StatusInternalServerError, "the service.yaml cannot be read; the balancer's log says why")
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text)
}

// serveDecision answers what became of a request.
func (a *API) serveDecision(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("request")
	d, ok := a.opts.Decisions.Decision(id)
	if !ok {
		refuse(w, http.StatusNotFound, "no decision about request "+quoted(id)+" is remembered here")
		return
	}
	answer(w, http.StatusOK, d)
}

// answer writes a JSON document. A client that has gone is no failure.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// refuse writes an error in the API's one form.
func refuse(w http.ResponseWriter, status int, message string) {
	type text struct {
		Message string `json:"message"`
	}
	answer(w, status, struct {
		Error text `json:"error"`
	}{text{message}})
}

// quoted writes what a client sent, cut to a length that is good to read.
func quoted(s string) string {
	const most = 100
	b, _ := json.Marshal(s[:min(len(s), most)])
	return cmp.Or(string(b), `""`)
}
