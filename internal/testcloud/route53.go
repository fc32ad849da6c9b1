package testcloud

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// route53Namespace is the XML namespace of Route53's documents.
const route53Namespace = "https://route53.amazonaws.com/doc/2013-04-01/"

// maxRoute53Body bounds a request: a batch of 1000 changes is smaller.
const maxRoute53Body = 4 << 20

// Route53 is Amazon Route 53 in memory: hosted zones with their record sets,
// health checks and tags, by the REST-XML protocol of 2013-04-01. Signatures are
// not checked. Use NewRoute53; once it is served, change fields by Set alone.
type Route53 struct {
	faults *Faults
	// Deny answers calls of an action (route53:GetChange) with an error code
	// (AccessDenied, ExpiredToken, ...).
	Deny map[string]string
	// PageSize is the most that one answer of a list holds; 0 = as many as were asked for.
	PageSize int
	// PendingPolls is how often a change is still PENDING when it is asked for; 0 = it
	// is everywhere at once.
	PendingPolls int

	mu      sync.Mutex
	next    int // numbers of ids
	zones   []*hostedZone
	changes map[string]int // id -> polls until INSYNC
	checks  []*HealthCheck // in order of creation
	refs    map[string]bool
	tags    map[string]map[string]string // of health checks, by id
}

// NewRoute53 makes a Route53 without any zone.
func NewRoute53(faults *Faults) *Route53 {
	return &Route53{
		faults: faults, changes: map[string]int{},
		refs: map[string]bool{}, tags: map[string]map[string]string{},
	}
}

// Set changes fields while programs call.
func (r *Route53) Set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// denied is the code with which an action is refused; empty where it is not.
func (r *Route53) denied(action string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Deny[action]
}

// id makes the next id with a prefix. The caller holds mu, or is alone.
func (r *Route53) id(prefix string) string {
	r.next++
	return fmt.Sprintf("%s%012d", prefix, r.next)
}

// route53Error is an answer that is an error, as Route53 gives it.
type route53Error struct {
	status  int
	code    string
	message string
}

func (e *route53Error) Error() string { return e.code + ": " + e.message }

// refusal makes an error of the caller's.
func refusal(code, format string, args ...any) error {
	return &route53Error{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// notFound makes an error of something that is not there.
func notFound(code, format string, args ...any) error {
	return &route53Error{http.StatusNotFound, code, fmt.Sprintf(format, args...)}
}

// route53Call is one call with what its path and query name.
type route53Call struct {
	*http.Request
	body []byte
}

// read parses the body of a call into v.
func (c route53Call) read(v any) error {
	if err := xml.Unmarshal(c.body, v); err != nil {
		return refusal("MalformedInput", "%v", err)
	}
	return nil
}

// operation is one action of the API. Its result is the document of the answer.
type operation struct {
	action string
	reads  bool
	status int
	do     func(r *Route53, c route53Call) (any, error)
}

// route53Operations are the actions by method and path.
var route53Operations = map[string]operation{
	"GET /2013-04-01/hostedzonesbyname":      {"ListHostedZonesByName", true, http.StatusOK, (*Route53).listZones},
	"GET /2013-04-01/hostedzone/{id}":        {"GetHostedZone", true, http.StatusOK, (*Route53).getZone},
	"GET /2013-04-01/hostedzone/{id}/rrset":  {"ListResourceRecordSets", true, http.StatusOK, (*Route53).listSets},
	"POST /2013-04-01/hostedzone/{id}/rrset": {"ChangeResourceRecordSets", false, http.StatusOK, (*Route53).changeSets},
	// As older clients ask for it.
	"POST /2013-04-01/hostedzone/{id}/rrset/{$}": {"ChangeResourceRecordSets", false, http.StatusOK, (*Route53).changeSets},
	"GET /2013-04-01/change/{id}":                {"GetChange", true, http.StatusOK, (*Route53).getChange},
	"POST /2013-04-01/healthcheck":               {"CreateHealthCheck", false, http.StatusCreated, (*Route53).createCheck},
	"GET /2013-04-01/healthcheck":                {"ListHealthChecks", true, http.StatusOK, (*Route53).listChecks},
	"GET /2013-04-01/healthcheck/{id}":           {"GetHealthCheck", true, http.StatusOK, (*Route53).getCheck},
	"POST /2013-04-01/healthcheck/{id}":          {"UpdateHealthCheck", false, http.StatusOK, (*Route53).updateCheck},
	"DELETE /2013-04-01/healthcheck/{id}":        {"DeleteHealthCheck", false, http.StatusOK, (*Route53).deleteCheck},
	"POST /2013-04-01/tags/healthcheck/{id}":     {"ChangeTagsForResource", false, http.StatusOK, (*Route53).changeTags},
	"GET /2013-04-01/tags/healthcheck/{id}":      {"ListTagsForResource", true, http.StatusOK, (*Route53).listTags},
	"POST /2013-04-01/tags/healthcheck":          {"ListTagsForResources", true, http.StatusOK, (*Route53).listTagsOfMany},
}

// Handler serves the API.
func (r *Route53) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, op := range route53Operations {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, op) })
	}
	return mux
}

// serve answers one call, or fails as its faults say.
func (r *Route53) serve(w http.ResponseWriter, req *http.Request, op operation) {
	action := "route53:" + op.action
	outcome, end := r.faults.Begin(Call{Cloud: "aws", Action: action, Reads: op.reads})
	defer end()
	body, err := io.ReadAll(io.LimitReader(req.Body, maxRoute53Body))
	denied := r.denied(action)
	switch {
	case outcome == Refused || err != nil:
		Cut()
	case outcome == Throttled:
		writeRoute53Error(w, refusal("Throttling", "Rate exceeded"))
		return
	case outcome == Broken:
		writeRoute53Error(w, &route53Error{http.StatusInternalServerError, "InternalFailure", "An internal error has occurred"})
		return
	case denied != "":
		writeRoute53Error(w, &route53Error{http.StatusForbidden, denied, "User: arn:aws:iam::1:user/test is not authorized to perform: " + action})
		return
	}
	r.mu.Lock()
	document, err := op.do(r, route53Call{req, body})
	r.mu.Unlock()
	if outcome == Lost {
		Cut()
	}
	if err != nil {
		writeRoute53Error(w, err)
		return
	}
	writeRoute53(w, op.status, op.action+"Response", document)
}

// writeRoute53 writes a document under a root element.
func writeRoute53(w http.ResponseWriter, status int, root string, document any) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	start := xml.StartElement{
		Name: xml.Name{Local: root},
		Attr: []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: route53Namespace}},
	}
	_, _ = io.WriteString(w, xml.Header) // the caller may have disconnected
	_ = xml.NewEncoder(w).EncodeElement(document, start)
}

// writeRoute53Error writes an error.
func writeRoute53Error(w http.ResponseWriter, err error) {
	var e *route53Error
	if !errors.As(err, &e) {
		e = &route53Error{http.StatusInternalServerError, "InternalFailure", err.Error()}
	}
	type detail struct{ Type, Code, Message string }
	writeRoute53(w, e.status, "ErrorResponse", struct {
		Error     detail
		RequestID string `xml:"RequestId"`
	}{detail{"Sender", e.code, e.message}, "request"})
}

// page cuts a list at its limit, or at the fake's own.
func page[T any](r *Route53, all []T, asked int) (part []T, truncated bool) {
	most := asked
	if r.PageSize > 0 && (most == 0 || r.PageSize < most) {
		most = r.PageSize
	}
	if most == 0 || len(all) <= most {
		return all, false
	}
	return all[:most], true
}

// absolute is a name with its last dot, in lower case.
func absolute(name string) string {
	return strings.TrimSuffix(strings.ToLower(name), ".") + "."
}

// reversed is the labels of a name from the last, by which Route53 sorts.
func reversed(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}
