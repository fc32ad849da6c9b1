package testcloud

import (
	"maps"
	"net/http"
	"slices"
)

// gceOperation is a change that is in progress or done.
type gceOperation struct {
	Kind          string             `json:"kind"`
	ID            string             `json:"id"`
	Name          string             `json:"name"`
	SelfLink      string             `json:"selfLink"`
	Zone          string             `json:"zone,omitempty"`
	OperationType string             `json:"operationType"`
	TargetLink    string             `json:"targetLink"`
	TargetID      string             `json:"targetId,omitempty"`
	Status        string             `json:"status"` // RUNNING, DONE
	Progress      int                `json:"progress"`
	HTTPStatus    int                `json:"httpErrorStatusCode,omitempty"`
	HTTPMessage   string             `json:"httpErrorMessage,omitempty"`
	Error         *gceOperationError `json:"error,omitempty"`

	startedAt int // the call that started it
	dueAt     int // the call after which it is done
	finish    func() *GCEFailure
}

type gceOperationError struct {
	Errors []gceOperationErrorItem `json:"errors"`
}

type gceOperationErrorItem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// startOperation starts an operation that is done after some calls; see SetOperationCalls. Then it calls finish,
// which returns a failure after it has rolled the change back. zone is empty for a project-wide operation.
func (g *GCE) startOperation(r *http.Request, zone, verb, target string, finish func() *GCEFailure) *gceOperation {
	id := g.nextNumber()
	op := &gceOperation{
		Kind: "compute#operation", ID: id, Name: "operation-" + id, OperationType: verb, TargetLink: g.link(target),
		Status: "RUNNING", startedAt: g.calls, dueAt: g.calls + g.steps, finish: finish,
	}
	op.SelfLink = g.link("global/operations/" + op.Name)
	if zone != "" {
		op.Zone = g.link("zones/" + zone)
		op.SelfLink = op.Zone + "/operations/" + op.Name
	}
	g.operations[op.Name] = op
	if request := r.FormValue("requestId"); request != "" {
		g.requests[request] = op.Name
	}
	g.advance()
	return op
}

// repeatedOperation returns the operation that an earlier request with the same id started; nil = none.
func (g *GCE) repeatedOperation(r *http.Request) *gceOperation {
	return g.operations[g.requests[r.FormValue("requestId")]]
}

// checkReady rejects a change of a resource with another change in progress.
func (g *GCE) checkReady(target string) *gceError {
	for _, op := range g.operations {
		if op.Status != "DONE" && op.TargetLink == g.link(target) {
			return newGCEError(http.StatusBadRequest, "resourceNotReady", "The resource 'projects/%s/%s' is not ready", g.project, target)
		}
	}
	return nil
}

// advance completes the operations that are due, in the order of their start.
func (g *GCE) advance() {
	running := slices.Collect(maps.Values(g.operations))
	running = slices.DeleteFunc(running, func(op *gceOperation) bool { return op.Status == "DONE" || op.dueAt > g.calls })
	slices.SortFunc(running, func(a, b *gceOperation) int { return a.startedAt - b.startedAt })
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
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/operations/%s' was not found", g.project, r.PathValue("name"))
	}
	return op, nil
}

// injectedFailure returns the failure that FailOperations set for an action; nil = none.
func (g *GCE) injectedFailure(action string) *GCEFailure {
	if f, ok := g.failures[action]; ok {
		return &f
	}
	return nil
}
