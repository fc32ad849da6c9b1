package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
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

// Bounds of the resources that one client can use, with reasons.
const (
	bodyTimeout  = 10 * time.Second // a body fits one packet; a slower client is an attacker
	writeTimeout = 30 * time.Second // sufficient for a week of history over a slow connection
	maxWatchers  = 64               // one dashboard per operator on duty
)

// Replica is a replica with its state at the balancer.
type Replica struct {
	service.ReplicaConfig
	State service.ReplicaState
	// Reason explains why it is not ready, or a problem of a ready replica.
	Reason string
	// View is the core's state; nil while its model is unknown.
	View *core.ReplicaView
	// HitRate is the engine's own prefix hit rate of the last minute.
	HitRate policy.Maybe[float64]
	// DrainedBy and Origin are as in telemetry.Worker.
	DrainedBy, Origin string
}

// ErrDiscovered means that a replica was discovered: the file or the DNS name that lists it decides whether it
// is attached.
var ErrDiscovered = errors.New("the replica was discovered")

// Workers is the set of replicas that the balancer serves.
type Workers interface {
	// Add attaches or updates a replica. It returns proxy.ErrOlderEpoch if a newer assignment
	// exists, and ErrDiscovered for another URL of a discovered replica.
	Add(service.ReplicaConfig) (added bool, err error)
	// Remove detaches a replica; epoch 0 removes any assignment. It returns ErrDiscovered for a
	// discovered replica.
	Remove(id string, epoch uint64) (removed bool, err error)
	// Drain stops new requests to a replica; requests in flight finish. It returns false if the
	// replica is unknown. by is the program that drains it, empty for a person, who overrides
	// programs.
	Drain(id, by string) bool
	// List returns the replicas sorted by id.
	List() []Replica
}

// Traffic provides the balancer's counts.
type Traffic interface {
	View() core.BalancerView
	TrafficStats() proxy.TrafficStats
}

// Decisions stores and streams routing decisions.
type Decisions interface {
	Decision(id string) (record.RequestRecord, bool)
	// DecisionMemory returns the number of stored decisions and the age of the oldest.
	DecisionMemory() telemetry.DecisionMemory
	Subscribe() (events <-chan json.RawMessage, cancel func())
}

// HistorySource returns the load of each minute. complete is false if the store, which has the points of other balancers,
// does not respond. UnstoredPoints returns the balancer's own points that may differ from those in the store.
type HistorySource interface {
	History(ctx context.Context, sinceMinute int64) (points []telemetry.Point, complete bool, err error)
	UnstoredPoints(sinceMinute int64) []telemetry.Point
}

// Options configure the API. Workers, Traffic, Decisions, History, Usage and Peers are required.
type Options struct {
	// Self names this balancer; Listen and Admin are its listen addresses.
	Self service.BalancerConfig
	// Version is the version of the binary; empty = unknown.
	Version   string
	Workers   Workers
	Traffic   Traffic
	Decisions Decisions
	// Requests returns the newest stored requests, at most limit, newest first; required.
	Requests func(limit int) []telemetry.RequestSummary
	History  HistorySource
	Usage    UsageSource
	// Limited lists the currently valid API keys, and the users and tenants with quotas; nil = none.
	Limited func() []telemetry.LimitedName
	// Peers lists the other balancers with their last reports, sorted by id.
	Peers func() []peer.Health
	// ServiceYAML returns the text of service.yaml; nil = there is none.
	ServiceYAML func() ([]byte, error)
	// Reload reloads the balancer's configuration; it returns *telemetry.ReloadRefused if the
	// configuration is not usable. nil = there is no configuration file.
	Reload func() (telemetry.Reload, error)
	// Certificate returns the state of the public listener's certificate; nil, or returning nil,
	// without TLS.
	Certificate func() *telemetry.Certificate
	// Review returns the controller's last review of the load; nil, or returning nil, if unknown.
	Review func() *telemetry.Review
	// Scaling returns the controller's scaling actions; nil, or returning nil, if unknown.
	Scaling func() *telemetry.Scaling
	// Control returns the state of the controllers and of the store; nil, or returning nil, if unknown.
	Control func() (*telemetry.ControllerState, *telemetry.StoreState)
	// BalancerLaunches returns the signed record of the balancers that controllers launched; nil, or returning nil,
	// if there are none.
	BalancerLaunches func() *telemetry.BalancerLaunches
	// Batches returns the batches that have not ended, the earliest deadline first; nil without a store.
	Batches func() []telemetry.BatchState
	// Alerts returns the balancer's own alerts, ServiceAlerts those of the service's controller; nil
	// = none.
	Alerts        func() []telemetry.Alert
	ServiceAlerts func() []telemetry.Alert
	// Events are the events of the service; nil without a store.
	Events EventLog
	// Removals stores the replicas that operators are removing; nil without a store.
	Removals RemovalStore
	// Backup is the store; nil without one.
	Backup BackupStore
	// Draining reports whether the balancer is shutting down; nil = it is not.
	Draining func() bool
	// Registry holds the metrics; nil = none.
	Registry *prometheus.Registry
	// Token is required by ServeHTTP for every request except /healthz; empty = it serves only local
	// requests.
	Token string
	// AllowCIDRs are networks of replicas that /add_worker would otherwise reject.
	AllowCIDRs []netip.Prefix
	// Resolve resolves a host name to addresses; nil = the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Logger receives manual changes; nil = no logs.
	Logger *slog.Logger
	// Now returns the current time; nil = time.Now.
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

// New returns the API.
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
	for _, r := range a.routes() {
		a.mux.HandleFunc(r.pattern, r.serve)
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "the admin API has no "+r.Method+" "+r.URL.Path+"; docs/openapi-admin.yaml describes it. Clients use the address for clients, not this one")
	})
	return a
}

// HasPath reports whether the API serves a GET or a POST of a path.
func (a *API) HasPath(path string) bool {
	return slices.ContainsFunc([]string{http.MethodGet, http.MethodPost}, func(method string) bool {
		_, pattern := a.mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
		return pattern != "/"
	})
}

// route is a request that the API serves: a pattern of http.ServeMux, and its handler.
type route struct {
	pattern string
	serve   http.HandlerFunc
}

// routes returns all routes. docs/openapi-admin.yaml describes them.
func (a *API) routes() []route {
	return slices.Concat([]route{
		{"GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
		}},
		{"GET /readyz", a.serveReady},
		{"GET /v1/snapshot", func(w http.ResponseWriter, r *http.Request) {
			writeJSON(w, http.StatusOK, a.snapshot(r.URL.Query().Get("replicas") == telemetry.ReplicasOwn))
		}},
		{"GET /v1/service", a.serveService},
		{"GET /v1/history", a.serveHistory},
		{"GET /v1/usage", a.serveUsage},
		{"GET /usage", a.serveUsage},
		{"GET /v1/decisions", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, a.opts.Decisions.DecisionMemory())
		}},
		{"GET /v1/decisions/{request...}", a.serveDecision},
		{"GET /v1/requests", a.serveRequests},
		{"GET /v1/events", a.serveEvents},
		{"GET /v1/service/events", a.serveServiceEvents},
		{"POST /v1/service/events", a.recordEvents},
		{"PUT /v1/service/events/pending", a.receivePending},
		{"POST /v1/service/removals", a.announceRemovals},
		{"GET /metrics", promhttp.HandlerFor(a.opts.Registry, promhttp.HandlerOpts{}).ServeHTTP},
		{"GET /v1/store/backup", a.serveBackup},
		{"POST /v1/store/restore", a.serveRestore},
		{"POST /reload", a.serveReload},
		{"GET /debug/pprof/", pprof.Index},
		{"GET /debug/pprof/cmdline", pprof.Cmdline},
		{"GET /debug/pprof/profile", pprof.Profile},
		{"GET /debug/pprof/symbol", pprof.Symbol},
		{"GET /debug/pprof/trace", pprof.Trace},
	}, a.workerRoutes(), a.inviteRoutes())
}

// serveReady responds whether the balancer is ready (200, else 503), with all alerts, which do not
// affect readiness. The public port's /readyz does not disclose the alerts.
func (a *API) serveReady(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	own := s.Balancer(a.opts.Self.ID)
	status := http.StatusServiceUnavailable
	if own.State == service.StateReady {
		status = http.StatusOK
	}
	writeJSON(w, status, struct {
		State  service.ReplicaState `json:"state"`
		Reason string               `json:"reason"`
		Alerts []telemetry.Alert    `json:"alerts"`
	}{own.State, own.Reason, s.Alerts})
}

// ServeHTTP authorizes and serves a request. Clients that do not read the response, or do not send
// the body, are disconnected.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.serveRequest(w, r, a.opts.Token != "", a.authorized(r))
}

// ServeCertified is ServeHTTP for a client that a certificate authorizes; it needs no token.
func (a *API) ServeCertified(w http.ResponseWriter, r *http.Request) {
	a.serveRequest(w, r, true, true)
}

// Forbid responds with 403 to a client that is authenticated but not authorized.
func (a *API) Forbid(w http.ResponseWriter, reason string) {
	writeError(w, http.StatusForbidden, reason)
}

// serveRequest serves a request. beyond: the listener is reachable from other machines. authorized: the
// client is authorized.
func (a *API) serveRequest(w http.ResponseWriter, r *http.Request, beyond, authorized bool) {
	ctl := http.NewResponseController(w)                                   // a writer without deadlines may block
	defer func() { _ = ctl.SetReadDeadline(deadlineAfter(bodyTimeout)) }() // net/http reads the unread rest of the body
	deadline := deadlineAfter(writeTimeout)
	if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
		deadline = time.Time{} // the client chooses the duration
	}
	_ = ctl.SetWriteDeadline(deadline)
	switch err := a.csrf.Check(r); {
	case err != nil:
		writeError(w, http.StatusForbidden, "cross-origin requests are not allowed")
	case !beyond && !NamesLoopback(r.Host):
		// Without this check, an attacker's DNS name for this machine would let a browser read the
		// API for the attacker.
		writeError(w, http.StatusForbidden, "without a token, the admin API accepts only local requests: host must be localhost or a loopback address, got "+r.Host)
	case !authorized && r.URL.Path != "/healthz":
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, http.StatusUnauthorized, "the admin API requires a token: Authorization: Bearer TOKEN")
	default:
		a.mux.ServeHTTP(w, r)
	}
}

// deadlineAfter returns the deadline after a duration. Deadlines use the machine's clock, not Options.Now.
func deadlineAfter(d time.Duration) time.Time { return time.Now().Add(d) }

func (a *API) authorized(r *http.Request) bool {
	if a.opts.Token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(a.opts.Token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// NamesLoopback reports whether a host, with or without a port, is this machine.
func NamesLoopback(host string) bool {
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

// BeyondLoopback reports whether a listen address (host:port) is reachable from other machines.
func BeyondLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err != nil || !NamesLoopback(host)
}

// serveService responds with service.yaml.
func (a *API) serveService(w http.ResponseWriter, _ *http.Request) {
	if a.opts.ServiceYAML == nil {
		writeError(w, http.StatusNotFound, "this balancer was started without a service.yaml")
		return
	}
	text, err := a.opts.ServiceYAML()
	if err != nil {
		a.opts.Logger.Error("reading service.yaml failed", "err", err)
		writeError(w, http.StatusInternalServerError, "reading service.yaml failed; see the balancer's log")
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text)
}

// serveDecision responds with the record of a request.
func (a *API) serveDecision(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("request")
	d, ok := a.opts.Decisions.Decision(id)
	if !ok {
		writeError(w, http.StatusNotFound, "no decision recorded for request "+quoteClipped(id))
		return
	}
	writeJSON(w, http.StatusOK, d)
}

// writeJSON writes a JSON document. Errors of a disconnected client are ignored.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// writeError writes an error in the common format of the API.
func writeError(w http.ResponseWriter, status int, message string) {
	writeErrorCode(w, status, "", message)
}

// writeNoStore responds with 404 and the code of telemetry.ErrNoStore.
func writeNoStore(w http.ResponseWriter, message string) {
	writeErrorCode(w, http.StatusNotFound, telemetry.CodeNoStore, message)
}

// writeErrorCode responds with a JSON error; an empty code is omitted.
func writeErrorCode(w http.ResponseWriter, status int, code, message string) {
	type text struct {
		Message string `json:"message"`
		Code    string `json:"code,omitempty"`
	}
	writeJSON(w, status, struct {
		Error text `json:"error"`
	}{text{message, code}})
}

// quoteClipped quotes client input and truncates it to a readable length.
func quoteClipped(s string) string {
	const maxBytes = 100
	b, _ := json.Marshal(strings.ToValidUTF8(s[:min(len(s), maxBytes)], ""))
	return cmp.Or(string(b), `""`)
}
