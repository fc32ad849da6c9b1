package proxy

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// Handler returns the handler of the public API.
func (r *Runtime) Handler() http.Handler { return http.HandlerFunc(r.serveRequest) }

func (r *Runtime) serveRequest(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	e := openai.EndpointAt(path)
	if e == nil || req.ProtoMajor == 1 { // an exchange over HTTP/2 sets its own deadline; see guardHTTP2Write
		r.setWriteDeadline(w)
	}
	if (e == nil || req.Method == http.MethodOptions) && req.ContentLength != 0 {
		r.setBodyDeadlines(w) // also net/http waits for a body, if the handler does not read it
	}
	if origins := r.origins.Load(); origins != nil && origins.serve(w, req) {
		return
	}
	if e != nil {
		if r.allowMethod(w, req, e.Method()) {
			r.serveInference(w, req, e)
		}
		return
	}
	for i := range routes {
		if own := &routes[i]; own.matches(path) {
			id := requestID(req.Header.Get(headerRequestID))
			req.Header.Set(headerRequestID, id) // a response of the route, or an error, has the same ID
			w.Header().Set(headerRequestID, id)
			if own.methods == nil || r.allowMethod(w, req, own.methods...) {
				own.serve(r, w, req)
			}
			return
		}
	}
	r.refuseRequest(w, req, r.errNoPath(req))
}

// setWriteDeadline sets the time within which the client must read what is written next.
func (r *Runtime) setWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(r.limits.StallTimeout)) // a writer without deadlines may block
}

// setBodyDeadlines sets the time within which the client must send the body of a request, and after that read the
// response: net/http sends the response to a request with a small body only after the body.
func (r *Runtime) setBodyDeadlines(w http.ResponseWriter) {
	ctl, due := http.NewResponseController(w), time.Now().Add(r.limits.BodyTimeout)
	_ = ctl.SetReadDeadline(due) // a connection without deadlines may block
	_ = ctl.SetWriteDeadline(due.Add(r.limits.StallTimeout))
}

// route is a path of the public API that is not an inference endpoint. docs/openapi.yaml describes it.
type route struct {
	path string
	// below: it includes the paths below.
	below bool
	// methods are the allowed ones; nil = serve checks them.
	methods []string
	serve   func(*Runtime, http.ResponseWriter, *http.Request)
}

func (o *route) matches(path string) bool {
	return path == o.path || o.below && isUnder(path, o.path)
}

var routes = []route{
	{path: "/healthz", methods: []string{http.MethodGet}, serve: func(_ *Runtime, w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }},
	{path: "/readyz", methods: []string{http.MethodGet}, serve: (*Runtime).serveReady},
	{path: "/health", methods: []string{http.MethodGet}, serve: (*Runtime).serveReady},
	{path: "/ping", methods: []string{http.MethodGet, http.MethodPost}, serve: (*Runtime).serveReady},
	{path: "/version", methods: []string{http.MethodGet}, serve: (*Runtime).serveVersion},
	{path: "/v1/models", below: true, methods: []string{http.MethodGet}, serve: (*Runtime).serveModels},
	{path: strings.TrimSuffix(pathResponses, "/"), below: true, serve: (*Runtime).serveStored},
	{path: "/v1/files", below: true, serve: (*Runtime).serveBatches},
	{path: "/v1/batches", below: true, serve: (*Runtime).serveBatches},
}

// errNoPath is the error of a request for a path that the public API does not have.
func (r *Runtime) errNoPath(req *http.Request) *openai.Error {
	e := &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Code: "not_found",
		Message: "unknown request URL: " + req.Method + " " + req.URL.Path,
	}
	if r.servedByAdmin != nil && r.servedByAdmin(req.URL.Path) {
		e.Message += "; this path is served at the balancer's admin address"
		return e
	}
	// Clients differ in whether their base URL contains /v1.
	for _, path := range []string{"/v1" + req.URL.Path, strings.TrimPrefix(req.URL.Path, "/v1")} {
		if isServed(path) {
			e.Message += "; did you mean " + path + "?"
			break
		}
	}
	return e
}

// isServed reports whether the public API has a path below /v1.
func isServed(path string) bool {
	return strings.HasPrefix(path, "/v1/") &&
		(openai.EndpointAt(path) != nil || slices.Contains([]string{"/v1/models", "/v1/files", "/v1/batches"}, path))
}

func isUnder(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// allowMethod reports whether a request uses one of the methods of its path (HEAD counts as GET). If not, it
// responds with an error.
func (r *Runtime) allowMethod(w http.ResponseWriter, req *http.Request, methods ...string) bool {
	for _, m := range methods {
		if req.Method == m || (m == http.MethodGet && req.Method == http.MethodHead) {
			return true
		}
	}
	method := strings.Join(methods, ", ")
	w.Header().Set("Allow", method)
	r.refuseRequest(w, req, &openai.Error{
		Status: http.StatusMethodNotAllowed, Kind: openai.TypeInvalid, Code: "method_not_allowed",
		Message: req.Method + " " + req.URL.Path + ": method not allowed, use " + method,
	})
	return false
}

// refuseRequest rejects a request that has no exchange: one to a route, to an unknown path, or with a wrong
// method.
func (r *Runtime) refuseRequest(w http.ResponseWriter, req *http.Request, e *openai.Error) {
	r.finishBody(w, req)
	w.Header().Set(headerRegion, string(r.self.Region))
	writeError(w, req.URL.Path, requestID(req.Header.Get(headerRequestID)), e)
}

// maxUnreadBody is the maximum size, in bytes, of the unread part of a rejected request's body for which
// the balancer waits before it responds; net/http's limit too.
const maxUnreadBody = 256 << 10

// finishBody prepares the response to a rejected request whose body may still be arriving. A client
// that is sending when its connection is closed sees a broken connection instead of the response, so
// the rest of a small body is read first: by net/http, or here if the connection ends with this
// response, for which net/http does not do it. The time for that is limited.
func (r *Runtime) finishBody(w http.ResponseWriter, req *http.Request) {
	r.setBodyDeadlines(w)
	if req.Close && req.ProtoMajor == 1 && req.Header.Get("Expect") == "" { // a client that expects 100 Continue has sent nothing
		_, _ = io.CopyN(io.Discard, req.Body, maxUnreadBody) // the response is sent in any case
	}
}

func writeText(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s)) // an error means that the client disconnected
}

// serveReady reports whether a request could be served now. Engines serve /health and /ping with this meaning,
// and load balancers query them. It requires no key, and names no machine.
func (r *Runtime) serveReady(w http.ResponseWriter, _ *http.Request) {
	if reason := r.notReady(); reason != "" {
		w.Header().Set("Retry-After", "1")
		writeText(w, http.StatusServiceUnavailable, reason+"\n")
		return
	}
	writeText(w, http.StatusOK, "ok\n")
}

// serveVersion returns the version of the balancer in vLLM's format. If keys are required, the version
// requires one too, because it reveals which flaws are not fixed yet.
func (r *Runtime) serveVersion(w http.ResponseWriter, req *http.Request) {
	if _, refused := r.authenticate(req.Context(), req.Header); refused != nil {
		r.refuseRequest(w, req, refused)
		return
	}
	writeJSON(w, map[string]string{"version": cmp.Or(r.version, "unknown")})
}

// notReady returns the reason why no request can be served; empty if requests can be served.
func (r *Runtime) notReady() string {
	if r.draining.Load() {
		return "shutting down"
	}
	v := r.View()
	for _, rep := range v.Replicas {
		if rep.Ready && !rep.Draining {
			return ""
		}
	}
	if r.forwards() {
		for _, p := range v.Peers {
			for _, m := range p.Models {
				if p.Live && m.Replicas > 0 {
					return ""
				}
			}
		}
	}
	if slices.ContainsFunc(v.Models, func(m core.ModelView) bool { return m.Cold }) {
		return "" // its requests wait for a replica, which the controller launches because of them
	}
	attached := len(v.Replicas)
	if r.attached != nil {
		attached = r.attached()
	}
	if attached == 0 {
		return "no replica is attached and no peer can serve"
	}
	if attached == len(v.Replicas) && !slices.ContainsFunc(v.Replicas, func(rep core.ReplicaView) bool { return !rep.Draining }) {
		return "every replica is draining and no peer can serve"
	}
	// This path needs no key, and the reasons of the replicas may contain names of machines, so only the
	// admin API returns them.
	return "none of " + printable.Count(attached, "replica") + " is ready and no peer can serve: 'skyserve top' shows the reasons"
}

// modelObject is a model in the response of GET /v1/models.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Root    string `json:"root"` // the model that an alias stands for, else the name itself
	// Parent is the model of an adapter; null for a model.
	Parent *string `json:"parent"`
	// MaxModelLen is the maximum number of tokens of a request, prompt and response; 0 = unknown.
	MaxModelLen int `json:"max_model_len,omitempty"`
}

// serveModels lists every model name that a request may use, or returns the one in the path.
func (r *Runtime) serveModels(w http.ResponseWriter, req *http.Request) {
	if _, refused := r.authenticate(req.Context(), req.Header); refused != nil {
		r.refuseRequest(w, req, refused)
		return
	}
	t, lens := r.models.Load(), r.maxModelLens()
	if name, one := strings.CutPrefix(req.URL.Path, "/v1/models/"); one {
		if !t.accepts(name) {
			r.refuseRequest(w, req, r.errUnknownModel([]byte(name)))
			return
		}
		writeJSON(w, r.modelObject(t, lens, name))
		return
	}
	list := make([]modelObject, 0, len(t.names))
	for _, name := range t.names {
		list = append(list, r.modelObject(t, lens, name))
	}
	writeJSON(w, map[string]any{"object": "list", "data": list})
}

// modelObject returns the model object of a name in the table. lens is as in maxModelLens.
func (r *Runtime) modelObject(t *modelTable, lens map[string]int, name string) modelObject {
	resolved := t.byName[name]
	o := modelObject{ID: name, Object: "model", Created: r.startedAt.Unix(), OwnedBy: "skyserve", Root: cmp.Or(resolved.Model, name), MaxModelLen: lens[resolved.Model]}
	if resolved.Adapter != "" {
		o.Root, o.Parent = name, &resolved.Model
	}
	return o
}

func writeJSON(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // an error means that the client disconnected
}
