package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"google.golang.org/api/googleapi"

	"skyserve/provision"
)

// operationError is how an operation ended that the API had taken on.
type operationError struct {
	Code    string // ZONE_RESOURCE_POOL_EXHAUSTED
	Message string
}

func (e *operationError) Error() string { return e.Code + ": " + e.Message }

// refusal is what the cloud said, whether at once or at the end of an operation.
type refusal struct {
	status  int    // of HTTP; 0 = an operation ended so
	code    string // alreadyExists, QUOTA_EXCEEDED
	message string
}

// refusalOf reads an error; false when it is not the cloud's.
func refusalOf(err error) (refusal, bool) {
	var ended *operationError
	if errors.As(err, &ended) {
		return refusal{code: ended.Code, message: ended.Message}, true
	}
	var answer *googleapi.Error
	if !errors.As(err, &answer) {
		return refusal{}, false
	}
	r := refusal{status: answer.Code, code: http.StatusText(answer.Code), message: answer.Message}
	if len(answer.Errors) > 0 {
		r.code = answer.Errors[0].Reason
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

// isBusy says whether another change of the same thing is under way.
func isBusy(err error) bool {
	r, ok := refusalOf(err)
	return ok && (r.code == "resourceNotReady" || r.code == "RESOURCE_NOT_READY" || r.code == "resourceInUseByAnotherResource")
}

// noCapacity are the codes by which the cloud says that it has no machine of this
// kind here and now. Refusals at once spell them in one word (quotaExceeded).
var noCapacity = map[string]provision.Scope{
	"ZONE_RESOURCE_POOL_EXHAUSTED":              provision.ScopeZone,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": provision.ScopeZone,
	"UNSUPPORTED_OPERATION":                     provision.ScopeZone,
	"INSUFFICIENT_CAPACITY":                     provision.ScopeZone,
	"RESOURCE_NOT_READY":                        provision.ScopeZone,
	"RESOURCE_OPERATION_RATE_EXCEEDED":          provision.ScopeZone,
	"QUOTA_EXCEEDED":                            provision.ScopeQuota,
	"VPC_NOT_FOUND":                             provision.ScopeCloud,
}

var (
	wordEnd    = regexp.MustCompile(`[a-z][A-Z]`)
	noNetwork  = regexp.MustCompile(`/global/networks/[^']*' was not found`)
	globally   = regexp.MustCompile(`'?\w+_ALL_REGIONS'?`)
	permission = regexp.MustCompile(`'([a-zA-Z]+(?:\.[a-zA-Z]+)+)' permission`)
)

// capacityError is a refusal to launch a machine on an offering, if that is what it is.
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
	if spelled == "QUOTA_EXCEEDED" && globally.MatchString(r.message) {
		scope = provision.ScopeCloud
	}
	return &provision.CapacityError{Offering: offer, Scope: scope, Code: code, Err: err}, true
}

// explain makes an error that is about who calls a *provision.CredentialsError, and
// says of any other what was being done.
func explain(err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	if denied := deniedBy(err); denied != nil {
		return fmt.Errorf("%s: %w", doing, denied)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// deniedBy is an error as one about who calls; nil where it is not.
func deniedBy(err error) *provision.CredentialsError {
	var known *provision.CredentialsError
	if errors.As(err, &known) {
		return known
	}
	r, ok := refusalOf(err)
	if !ok {
		return nil
	}
	denied := &provision.CredentialsError{Cloud: "gcp", Code: r.code, Err: err}
	action := permission.FindStringSubmatch(r.message)
	switch {
	case r.status == http.StatusUnauthorized:
		denied.Hint = logIn
	case r.code == "accessNotConfigured" || strings.Contains(r.message, "has not been used in project"):
		denied.Action, denied.Hint = "the Compute Engine API", "enable it: gcloud services enable compute.googleapis.com"
	case strings.Contains(r.message, "billing"):
		denied.Action, denied.Hint = "what is billed", "link the project to a billing account"
	case r.code == "SERVICE_ACCOUNT_ACCESS_DENIED":
		denied.Action, denied.Hint = "iam.serviceAccounts.actAs", "grant the role Service Account User on the account that the machines run as"
	case action != nil:
		denied.Action, denied.Hint = action[1], "grant a role that has it, such as Compute Instance Admin (v1) and Compute Security Admin"
	case r.status == http.StatusForbidden && r.code == "forbidden":
		denied.Action, denied.Hint = "the call", "grant the roles Compute Instance Admin (v1) and Compute Security Admin"
	default:
		return nil
	}
	return denied
}

const logIn = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"

// noCredentials is that there are none, or that they are not valid any more.
func noCredentials(err error) error {
	return &provision.CredentialsError{Cloud: "gcp", Err: err, Hint: logIn}
}
