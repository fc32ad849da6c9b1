package gcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"skyserve/provision"
)

// explain makes an error that is about who calls a *provision.CredentialsError, one about
// a network that is not there or needs a subnet a *provision.SpecError, and says of any
// other what was being done.
func explain(err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	if denied := deniedBy(err); denied != nil {
		return fmt.Errorf("%s: %w", doing, denied)
	}
	if way := wayOut(err); way != "" {
		return &provision.SpecError{Err: fmt.Errorf("%s: %w (%s)", doing, err, way)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// wayOut is what to write in service.yaml where the cloud refuses the network that
// machines are to stand in; empty for any other error.
func wayOut(err error) string {
	r, _ := refusalOf(err)
	switch {
	case noNetwork.MatchString(r.message):
		return "name one that there is as network of the regions"
	case strings.Contains(r.message, "must specify a subnet"):
		return "name one as subnets of the region"
	case noSubnet.MatchString(r.message):
		return "name one that there is as subnets of the region"
	}
	return ""
}

var (
	permission = regexp.MustCompile(`'([a-zA-Z]+(?:\.[a-zA-Z]+)+)' permission`)
	constraint = regexp.MustCompile(`[Cc]onstraint '?(constraints/[\w./-]+)`)
	noAccount  = regexp.MustCompile(`The resource '(?:[^']*/)?([^'/]+)' of type 'serviceAccount' was not found`)
	apiName    = regexp.MustCompile(`([A-Z][A-Za-z ]* API) has not been used in project`)
	apisPath   = regexp.MustCompile(`/apis/api/[a-z]+\.googleapis\.com`)
	apiHost    = regexp.MustCompile(`[a-z]+\.googleapis\.com`)
)

// denial is one way of refusing a caller: how it is known, and what to tell of it.
type denial struct {
	is     func(refusal) bool
	action func(refusal) string // what is refused
	hint   func(refusal) string
}

// denials are tried in this order: what is said more exactly goes first.
var denials = []denial{
	{func(r refusal) bool { return r.status == http.StatusUnauthorized }, always(""), always(logIn)},
	{
		func(r refusal) bool { return strings.Contains(r.message, "requires a quota project") }, always("the call"),
		always("run gcloud auth application-default set-quota-project PROJECT"),
	},
	{
		func(r refusal) bool {
			return r.code == "accessNotConfigured" || strings.Contains(r.message, "has not been used in project")
		},
		func(r refusal) string { return "the " + found(apiName, r.message, "Compute Engine API") },
		func(r refusal) string {
			return "enable it: gcloud services enable " + cmp.Or(apiHost.FindString(apisPath.FindString(r.message)), "compute.googleapis.com")
		},
	},
	{
		func(r refusal) bool { return strings.Contains(r.message, "billing") }, always("what is billed"),
		always("link the project to a billing account"),
	},
	{
		func(r refusal) bool { return constraint.MatchString(r.message) },
		func(r refusal) string { return found(constraint, r.message, "") },
		func(r refusal) string {
			if strings.Contains(r.message, "vmExternalIpAccess") {
				return "machines need public addresses: have who administers the policies of your organisation allow them in this project"
			}
			return "it is a policy of your organisation: have who administers those make an exception for this project"
		},
	},
	{
		func(r refusal) bool { return noAccount.MatchString(r.message) },
		func(r refusal) string { return "running as " + found(noAccount, r.message, "") },
		always("'skyserve doctor' prints what makes it; or name one that there is as gcp.balancer_account or gcp.replica_account"),
	},
	{
		func(r refusal) bool {
			return r.code == "SERVICE_ACCOUNT_ACCESS_DENIED" || strings.Contains(r.message, "does not have access to service account")
		},
		always("iam.serviceAccounts.actAs"), always("grant the role Service Account User on the account that the machines run as"),
	},
	{
		func(r refusal) bool {
			return r.code == "insufficientPermissions" && strings.Contains(r.message, "scopes")
		},
		always("the call"), always("this machine's access scopes leave Compute Engine out: give it the scope cloud-platform, or run this elsewhere"),
	},
	{
		func(r refusal) bool { return permission.MatchString(r.message) },
		func(r refusal) string { return found(permission, r.message, "") },
		always("grant a role that has it, such as Compute Instance Admin (v1) and Compute Security Admin"),
	},
	{
		func(r refusal) bool {
			return r.status == http.StatusForbidden && r.code == "forbidden" || r.code == "PERMISSIONS_ERROR"
		},
		always("the call"), always("grant the roles Compute Instance Admin (v1) and Compute Security Admin"),
	},
}

func always(text string) func(refusal) string { return func(refusal) string { return text } }

// found is the first group of a form in a text; usual where it is not there.
func found(form *regexp.Regexp, text, usual string) string {
	if m := form.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return usual
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
	for _, d := range denials {
		if d.is(r) {
			return &provision.CredentialsError{Cloud: "gcp", Code: r.code, Err: err, Action: d.action(r), Hint: d.hint(r)}
		}
	}
	return nil
}

const logIn = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"

// noCredentials is that there are none, or that they are not valid any more.
func noCredentials(err error) error {
	hint := logIn
	if strings.Contains(err.Error(), "reasonable timeframe") { // so Google refuses what a wrong clock signs
		hint = setClock
	}
	return &provision.CredentialsError{Cloud: "gcp", Err: err, Hint: hint}
}
