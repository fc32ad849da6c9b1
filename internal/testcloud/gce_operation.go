package testcloud

import (
	"maps"
	"net/http"
	"slices"
)

// gceOperation is a change under way, or done.
type gceOperation struct {
	Kind          string             `json:"kind"`
	ID            string             `json:"id"`
	Name          string             `json:"name"`
	Zone          string             `json:"zone,omitempty"`
	OperationType string             `json:"operationType"`
	TargetLink    string             `json:"targetLink"`
	TargetID      string             `json:"targetId,omitempty"`
	Status        string             `json:"status"` // RUNNING, DONE
	Progress      int                `json:"progress"`
	HTTPStatus    int                `json:"httpErrorStatusCode,omitempty"`
	HTTPMessage   string             `json:"httpErrorMessage,omitempty"`
	Error         *gceOperationError `json:"error,omitempty"`

	at     int // the call at which it was begun
	due    int // the call at which it is done
	finish func() *GCEFailure
}

type gceOperationError struct {
	Errors []gceOperationErrorItem `json:"errors"`
}

type gceOperationErrorItem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// begin makes an operation that is done some calls later. It then does what finish
// does, which undoes what was begun where it returns a failure. zone is empty for one of the whole project.
func (g *GCE) begin(r *http.Request, zone, verb, target string, finish func() *GCEFailure) *gceOperation {
	id := g.number()
	op := &gceOperation{
		Kind: "compute#operation", ID: id, Name: "operation-" + id, OperationType: verb, TargetLink: g.link(target),
		Status: "RUNNING", at: g.calls, due: g.calls + g.steps, finish: finish,
	}
	if zone != "" {
		op.Zone = g.link("zones/" + zone)
	}
	g.operations[op.Name] = op
	if request := r.FormValue("requestId"); request != "" {
		g.requests[request] = op.Name
	}
	g.advance()
	return op
}

// repeated is the operation that a request with this id began before; nil = none.
func (g *GCE) repeated(r *http.Request) *gceOperation {
	return g.operations[g.requests[r.FormValue("requestId")]]
}

// busy refuses a change of something that another change is under way of.
func (g *GCE) busy(target string) *gceError {
	for _, op := range g.operations {
		if op.Status != "DONE" && op.TargetLink == g.link(target) {
			return gceFail(http.StatusBadRequest, "resourceNotReady", "The resource 'projects/%s/%s' is not ready", g.project, target)
		}
	}
	return nil
}

// advance ends the operations whose time has come, in the order in which they were begun.
func (g *GCE) advance() {
	running := slices.Collect(maps.Values(g.operations))
	running = slices.DeleteFunc(running, func(op *gceOperation) bool { return op.Status == "DONE" || op.due > g.calls })
	slices.SortFunc(running, func(a, b *gceOperation) int { return a.at - b.at })
	for _, op := range running {
		op.Status, op.Progress = "DONE", 100
		if failure := op.finish(); failure != nil {
			op.Error = &gceOperationError{[]gceOperationErrorItem{{failure.Code, failure.Message}}}
			op.HTTPStatus, op.HTTPMessage = http.StatusServiceUnavailable, "SERVICE UNAVAILABLE"
		}
	}
}

func (g *GCE) getOperation(r *http.Request) (any, *gceError) {
	op, ok := g.operations[r.PathValue("name")]
	if !ok {
		return nil, gceFail(http.StatusNotFound, "notFound", "The resource 'projects/%s/operations/%s' was not found", g.project, r.PathValue("name"))
	}
	return op, nil
}

// failure is how an operation of an action was told to end.
func (g *GCE) failure(action string) *GCEFailure {
	if f, ok := g.failures[action]; ok {
		return &f
	}
	return nil
}
