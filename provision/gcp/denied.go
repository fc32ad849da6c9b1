package gcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// wrapError adds the attempted action to err. An error about credentials or permissions becomes a
// *provision.CredentialsError, an error about a missing network or subnet a *provision.SpecError.
func wrapError(err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	if denied := callerError(err); denied != nil {
		return fmt.Errorf("%s: %w", doing, denied)
	}
	if r, _ := refusalOf(err); r.status == http.StatusTooManyRequests || r.code == codeRate {
		return &provision.ThrottledError{Cloud: service.CloudGCP, Code: r.code, Err: fmt.Errorf("%s: %w", doing, err)}
	}
	if hint := networkHint(err); hint != "" {
		return &provision.SpecError{Err: fmt.Errorf("%s: %w (%s)", doing, err, hint)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// networkHint returns the setting of service.yaml to change if the cloud rejects the network of machines;
// empty for any other error.
func networkHint(err error) string {
	r, _ := refusalOf(err)
	switch {
	case noNetwork.MatchString(r.message):
		return "set regions[].network to an existing network"
	case strings.Contains(r.message, "must specify a subnet"):
		return "set regions[].subnets"
	case noSubnet.MatchString(r.message):
		return "set regions[].subnets to an existing subnet"
	}
	return ""
}

// denial is one kind of error response about the caller's credentials or permissions: how to recognize it
// and what to report.
type denial struct {
	matches func(refusal) bool
	action  func(refusal) string // CredentialsError.Action: the denied permission
	hint    func(refusal) string
}

// denials are matched in this order: the most specific first.
var denials = []denial{
	{func(r refusal) bool { return r.status == http.StatusUnauthorized }, always(""), always(loginHint)},
	{
		func(r refusal) bool { return strings.Contains(r.message, "requires a quota project") }, always("the call"),
		always("set a quota project: gcloud auth application-default set-quota-project PROJECT"),
	},
	{
		func(r refusal) bool {
			return r.code == codeDisabledAPI || strings.Contains(r.message, "has not been used in project")
		},
		func(r refusal) string { return "the " + firstGroup(apiName, r.message, "Compute Engine API") },
		func(r refusal) string {
			return "enable it: gcloud services enable " + cmp.Or(apiHost.FindString(apisPath.FindString(r.message)), computeAPI)
		},
	},
	{
		func(r refusal) bool { return strings.Contains(r.message, "billing") }, always("use of billed resources"),
		always("link the project to a billing account"),
	},
	{
		func(r refusal) bool { return constraint.MatchString(r.message) },
		func(r refusal) string { return firstGroup(constraint, r.message, "") },
		func(r refusal) string {
			if strings.Contains(r.message, "vmExternalIpAccess") {
				return "machines require public addresses: request an exception from this organisation policy for the project"
			}
			return "request an exception from this organisation policy for the project"
		},
	},
	{
		func(r refusal) bool { return noAccount.MatchString(r.message) },
		func(r refusal) string { return "attaching service account " + firstGroup(noAccount, r.message, "") },
		always("run 'skyserve doctor' for the commands that create it, or set gcp.balancer_account or gcp.replica_account to an existing service account"),
	},
	{
		func(r refusal) bool {
			return r.code == codeNoActAsLater || strings.Contains(r.message, "does not have access to service account")
		},
		always("iam.serviceAccounts.actAs"), always("grant the role Service Account User on the service account of the machines"),
	},
	{
		func(r refusal) bool {
			return r.code == codeInsufficientScope && strings.Contains(r.message, "scopes")
		},
		always("the call"), always("add the access scope cloud-platform to this machine, or run skyserve on another machine"),
	},
	{
		func(r refusal) bool { return forStorage.MatchString(r.message) },
		func(r refusal) string { return firstGroup(forStorage, r.message, "") }, always(programHint),
	},
	{
		func(r refusal) bool { return permission.MatchString(r.message) },
		func(r refusal) string { return firstGroup(permission, r.message, "") },
		always("grant a role with this permission, such as Compute Instance Admin (v1) or Compute Security Admin"),
	},
	{
		func(r refusal) bool {
			return r.status == http.StatusForbidden && r.code == codeForbidden || r.code == codeForbiddenLater
		},
		always("the call"), always("grant the roles Compute Instance Admin (v1) and Compute Security Admin"),
	},
}

func always(text string) func(refusal) string { return func(refusal) string { return text } }

// firstGroup returns the first group of a pattern in a text; fallback without a match.
func firstGroup(pattern *regexp.Regexp, text, fallback string) string {
	if m := pattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return fallback
}

// callerError converts err to a *provision.CredentialsError; nil if err is not about credentials or
// permissions.
func callerError(err error) *provision.CredentialsError {
	var already *provision.CredentialsError
	if errors.As(err, &already) {
		return already
	}
	r, ok := refusalOf(err)
	if !ok {
		return nil
	}
	for _, d := range denials {
		if d.matches(r) {
			return &provision.CredentialsError{Cloud: "gcp", Code: r.code, Err: err, Action: d.action(r), Hint: d.hint(r)}
		}
	}
	return nil
}

const loginHint = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"

// noCredentials reports missing or expired credentials.
func noCredentials(err error) error {
	hint := loginHint
	if strings.Contains(err.Error(), "reasonable timeframe") { // Google's error for a signature with a wrong time
		hint = clockHint
	}
	return &provision.CredentialsError{Cloud: "gcp", Err: err, Hint: hint}
}
