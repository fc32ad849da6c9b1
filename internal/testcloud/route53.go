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

// maxRoute53Body limits a request: a batch of 1000 changes is smaller.
const maxRoute53Body = 4 << 20

// Route53 emulates Amazon Route 53 in memory: hosted zones with their record sets, health checks and
// tags, in the REST-XML protocol of 2013-04-01. It does not verify signatures. Create it with NewRoute53. While
// it is serving, change fields only with Configure.
type Route53 struct {
	faults *Faults
	// DenialCodes contains the error codes (AccessDenied, ExpiredToken) with which calls fail, by action
	// (route53:GetChange).
	DenialCodes map[string]string
	// PageSize is the maximum page size of a list; 0 = as requested.
	PageSize int
	// Machines is the AWS whose IAM roles authorize the calls of its machines; nil = every call is authorized.
	Machines *AWS
	// PendingPolls is the number of GetChange calls that report a change as PENDING; 0 = INSYNC at once.
	PendingPolls int

	mu      sync.Mutex
	next    int // numbers of ids
	zones   []*hostedZone
	changes map[string]int // id -> polls until INSYNC
	checks  []*HealthCheck // in order of creation
	refs    map[string]bool
	tags    map[string]map[string]string // of health checks, by id
}

// NewRoute53 returns a Route53 without hosted zones.
func NewRoute53(faults *Faults) *Route53 {
	return &Route53{
		faults: faults, changes: map[string]int{},
		refs: map[string]bool{}, tags: map[string]map[string]string{},
	}
}

// Configure changes fields while the service is serving.
func (r *Route53) Configure(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// denialCode returns the error code of a denied action; empty if it is allowed.
func (r *Route53) denialCode(action string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.DenialCodes[action]
}

// nextID returns the next id with a prefix. The caller holds mu.
func (r *Route53) nextID(prefix string) string {
	r.next++
	return fmt.Sprintf("%s%012d", prefix, r.next)
}

// route53Error is an error response of Route 53.
type route53Error struct {
	status  int
	code    string
	message string
}

func (e *route53Error) Error() string { return e.code + ": " + e.message }

// route53BadRequest returns an error response with status 400.
func route53BadRequest(code, format string, args ...any) error {
	return &route53Error{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// route53NotFound returns an error response for a resource that does not exist.
func route53NotFound(code, format string, args ...any) error {
	return &route53Error{http.StatusNotFound, code, fmt.Sprintf(format, args...)}
}

// route53Call is one call with its body.
type route53Call struct {
	*http.Request
	body []byte
}

// decode parses the body of a call into v.
func (c route53Call) decode(v any) error {
	if err := xml.Unmarshal(c.body, v); err != nil {
		return route53BadRequest("MalformedInput", "%v", err)
	}
	return nil
}

// operation is one action of the API. do returns the response document.
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
	// The path that older clients use.
	"POST /2013-04-01/hostedzone/{id}/rrset/{$}": {"ChangeResourceRecordSets", false, http.StatusOK, (*Route53).changeSets},
	"GET /2013-04-01/change/{id}":                {"GetChange", true, http.StatusOK, (*Route53).getChange},
	"POST /2013-04-01/healthcheck":               {"CreateHealthCheck", false, http.StatusCreated, (*Route53).createCheck},
	"GET /2013-04-01/healthcheck":                {"ListHealthChecks", true, http.StatusOK, (*Route53).listChecks},
	"GET /2013-04-01/healthcheck/{id}":           {"GetHealthCheck", true, http.StatusOK, (*Route53).getCheck},
	"POST /2013-04-01/healthcheck/{id}":          {"UpdateHealthCheck", false, http.StatusOK, (*Route53).updateCheck},
	"DELETE /2013-04-01/healthcheck/{id}":        {"DeleteHealthCheck", false, http.StatusOK, (*Route53).deleteCheck},
	"POST /2013-04-01/tags/healthcheck/{id}":     {"ChangeTagsForResource", false, http.StatusOK, (*Route53).changeTags},
	"GET /2013-04-01/tags/healthcheck/{id}":      {"ListTagsForResource", true, http.StatusOK, (*Route53).listTags},
	"POST /2013-04-01/tags/healthcheck":          {"ListTagsForResources", true, http.StatusOK, (*Route53).listTagsForChecks},
}

// Handler serves the API.
func (r *Route53) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, op := range route53Operations {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, op) })
	}
	return mux
}

// serve serves one call with the outcome that Faults decides.
func (r *Route53) serve(w http.ResponseWriter, req *http.Request, op operation) {
	action := "route53:" + op.action
	outcome, end := r.faults.BeginCall(Call{Cloud: "aws", Action: action, ReadOnly: op.reads})
	defer end()
	body, err := io.ReadAll(io.LimitReader(req.Body, maxRoute53Body))
	denied := r.denialCode(action)
	switch {
	case outcome == RequestLost || err != nil:
		DropConnection()
	case outcome == Throttled:
		writeRoute53Error(w, route53BadRequest("Throttling", "Rate exceeded"))
		return
	case outcome == InternalError:
		writeRoute53Error(w, &route53Error{http.StatusInternalServerError, "InternalFailure", "An internal error has occurred"})
		return
	case denied != "":
		writeRoute53Error(w, &route53Error{http.StatusForbidden, denied, "User: arn:aws:iam::1:user/test is not authorized to perform: " + action})
		return
	}
	if err := r.authorize(route53Call{req, body}, action); err != nil {
		writeRoute53Error(w, err)
		return
	}
	r.mu.Lock()
	document, err := op.do(r, route53Call{req, body})
	r.mu.Unlock()
	if outcome == ResponseLost {
		DropConnection()
	}
	if err != nil {
		writeRoute53Error(w, err)
		return
	}
	if located, ok := document.(interface{ location() string }); ok && op.status == http.StatusCreated {
		w.Header().Set("Location", located.location())
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

// limitPage limits a list to the requested page size, or to PageSize if that is smaller.
func limitPage[T any](r *Route53, all []T, requested int) (part []T, truncated bool) {
	limit := requested
	if r.PageSize > 0 && (limit == 0 || r.PageSize < limit) {
		limit = r.PageSize
	}
	if limit == 0 || len(all) <= limit {
		return all, false
	}
	return all[:limit], true
}

// fullyQualified returns a name in lower case with a final dot.
func fullyQualified(name string) string {
	return strings.TrimSuffix(strings.ToLower(name), ".") + "."
}

// reverseLabels returns the labels of a name in reverse order, which is the sort key of Route 53.
func reverseLabels(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}
