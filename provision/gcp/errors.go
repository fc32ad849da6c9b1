package gcp

import (
	"errors"
	"net/http"
	"strings"

	"google.golang.org/api/googleapi"

	"skyserve/provision"
)

// operationError is the error of an operation that Compute Engine accepted and that failed later.
type operationError struct {
	Code    string // ZONE_RESOURCE_POOL_EXHAUSTED
	Message string
}

func (e *operationError) Error() string { return e.Code + ": " + e.Message }

// refusal is an error response of the cloud, to a call or to its operation.
type refusal struct {
	status  int    // HTTP status; 0 = the operation failed
	code    string // alreadyExists, QUOTA_EXCEEDED
	message string
}

// refusalOf extracts a refusal from an error; false when the error is not an error response of the cloud.
func refusalOf(err error) (refusal, bool) {
	var operation *operationError
	if errors.As(err, &operation) {
		return refusal{code: operation.Code, message: operation.Message}, true
	}
	var call *googleapi.Error
	if !errors.As(err, &call) {
		return refusal{}, false
	}
	r := refusal{status: call.Code, code: http.StatusText(call.Code), message: call.Message}
	if len(call.Errors) > 0 {
		r.code = call.Errors[0].Reason
	}
	return r, true
}

func isMissing(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.status == http.StatusNotFound || r.code == codeMissingLater)
}

func isTaken(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.code == codeTaken || r.code == codeTakenLater)
}

// isBusy reports whether another change of the same object is in progress.
func isBusy(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.code == codeBusy || r.code == codeBusyLater || r.code == codeUsedByOther)
}

// capacityError converts err to a *provision.CapacityError; false if err is not about capacity.
func capacityError(offer provision.Offering, err error) (*provision.CapacityError, bool) {
	r, ok := refusalOf(err)
	if !ok {
		return nil, false
	}
	code := r.code
	if noNetwork.MatchString(r.message) {
		code = codeNoNetwork
	}
	spelled := strings.ToUpper(wordEnd.ReplaceAllStringFunc(code, func(s string) string { return s[:1] + "_" + s[1:] }))
	scope, known := noCapacity[spelled]
	if !known {
		return nil, false
	}
	if spelled == codeQuota && allRegionsQuota.MatchString(r.message) {
		scope = provision.ScopeCloud
	}
	return &provision.CapacityError{Offering: offer, Scope: scope, Code: code, Err: err}, true
}
