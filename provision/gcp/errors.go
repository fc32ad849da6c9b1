package gcp

import (
	"errors"
	"net/http"
	"regexp"
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
	return ok && (r.status == http.StatusNotFound || r.code == "RESOURCE_NOT_FOUND")
}

func isTaken(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.code == "alreadyExists" || r.code == "RESOURCE_ALREADY_EXISTS")
}

// isBusy reports whether another change of the same object is in progress.
func isBusy(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.code == "resourceNotReady" || r.code == "RESOURCE_NOT_READY" || r.code == "resourceInUseByAnotherResource")
}

// noCapacity maps the cloud's codes for a lack of capacity or quota to their scope. Calls return them in
// camel case (quotaExceeded), operations in capitals (QUOTA_EXCEEDED).
var noCapacity = map[string]provision.CapacityScope{
	"RESOURCE_POOL_EXHAUSTED":                   provision.ScopeZone,
	"STOCKOUT":                                  provision.ScopeZone,
	"ZONE_RESOURCE_POOL_EXHAUSTED":              provision.ScopeZone,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": provision.ScopeZone,
	"UNSUPPORTED_OPERATION":                     provision.ScopeZone,
	"INSUFFICIENT_CAPACITY":                     provision.ScopeZone,
	"RESOURCE_NOT_READY":                        provision.ScopeZone,
	"RESOURCE_OPERATION_RATE_EXCEEDED":          provision.ScopeZone,
	"IP_SPACE_EXHAUSTED":                        provision.ScopeRegion, // of the subnet, which spans all zones
	"IP_SPACE_EXHAUSTED_WITH_DETAILS":           provision.ScopeRegion,
	"QUOTA_EXCEEDED":                            provision.ScopeQuota,
	"VPC_NOT_FOUND":                             provision.ScopeCloud,
}

var (
	wordEnd         = regexp.MustCompile(`[a-z][A-Z]`)
	noNetwork       = regexp.MustCompile(`/global/networks/[^']*' was not found|referenced network resource cannot be found`)
	noSubnet        = regexp.MustCompile(`/subnetworks/[^']*' was not found|referenced subnetwork resource cannot be found`)
	allRegionsQuota = regexp.MustCompile(`'?\w+_ALL_REGIONS'?`)
)

// capacityError converts err to a *provision.CapacityError; false if err is not about capacity.
func capacityError(offer provision.Offering, err error) (*provision.CapacityError, bool) {
	r, ok := refusalOf(err)
	if !ok {
		return nil, false
	}
	code := r.code
	if noNetwork.MatchString(r.message) {
		code = "VPC_NOT_FOUND"
	}
	spelled := strings.ToUpper(wordEnd.ReplaceAllStringFunc(code, func(s string) string { return s[:1] + "_" + s[1:] }))
	scope, known := noCapacity[spelled]
	if !known {
		return nil, false
	}
	if spelled == "QUOTA_EXCEEDED" && allRegionsQuota.MatchString(r.message) {
		scope = provision.ScopeCloud
	}
	return &provision.CapacityError{Offering: offer, Scope: scope, Code: code, Err: err}, true
}
