package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/provision"
)

// codeOf returns the code of an error of AWS; empty for any other error.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// wrapError adds the attempted action to err, and maps it to the types of package provision. An error of
// credentials becomes a *provision.CredentialsError. A region whose host name does not resolve becomes a
// *provision.SpecError.
func wrapError(doing string, err error) error {
	var credentials *provision.CredentialsError
	var owned *provision.OwnedError
	var capacity *provision.CapacityError
	var spec *provision.SpecError
	var taken *provision.BucketTakenError
	var throttled *provision.ThrottledError
	if err == nil || errors.As(err, &throttled) || errors.As(err, &taken) || errors.As(err, &credentials) || errors.As(err, &owned) || errors.As(err, &capacity) || errors.As(err, &spec) {
		return err
	}
	if e := credentialsError(err); e != nil {
		return e
	}
	if _, is := retry.DefaultThrottleErrorCodes[codeOf(err)]; is {
		return &provision.ThrottledError{Cloud: service.CloudAWS, Code: codeOf(err), Err: fmt.Errorf("%s: %w", doing, plainError(err))}
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return &provision.SpecError{Err: fmt.Errorf("%s: host %s not found: check the name of the region: %w", doing, dns.Name, dns)}
	}
	return fmt.Errorf("%s: %w", doing, plainError(err))
}

// withAlternative adds to the hint of a denied call that a service without machines at AWS can do without the identity.
func (p *Provider) withAlternative(err error) error {
	var denied *provision.CredentialsError
	if p.cfg.IdentitiesOnly && errors.As(err, &denied) && denied.Hint != "" {
		other := *denied
		other.Hint += ", or set gcp.federation to false"
		return &other
	}
	return err
}

// encodedMessage starts the encoded part of an authorization failure. plainError removes that part,
// because only AWS can decode it.
const encodedMessage = " Encoded authorization failure message:"

// plainError reduces an error of the SDK to action, code and message.
func plainError(err error) error {
	var api smithy.APIError
	var already *ServiceError
	if errors.As(err, &api) && !errors.As(err, &already) {
		message, _, _ := strings.Cut(api.ErrorMessage(), encodedMessage)
		return &ServiceError{Action: actionOf(err), Code: api.ErrorCode(), Message: message, err: err}
	}
	return err
}

// ServiceError is an error response of AWS.
type ServiceError struct {
	Action  string // in the notation of permissions: ec2:RunInstances
	Code    string // AWS's error code
	Message string // AWS's message
	err     error
}

// Error returns action, code and message.
func (e *ServiceError) Error() string { return e.Action + ": " + e.Code + ": " + e.Message }

// Unwrap returns the SDK's error.
func (e *ServiceError) Unwrap() error { return e.err }

// actionOf returns the failed action in the notation of permissions: ec2:RunInstances.
func actionOf(err error) string {
	var op *smithy.OperationError
	if !errors.As(err, &op) {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(op.Service(), " ", "")) + ":" + op.Operation()
}

// notAuthorized matches the action in the message of an authorization failure. It may be another action
// than the call: a launch also requires the permission to pass an IAM role.
var notAuthorized = regexp.MustCompile(`not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)`)

// deniedAction returns the action that the caller lacks permission for.
func deniedAction(err error) string {
	if found := notAuthorized.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	if codeOf(err) == codeDeniedParameter { // EC2 names neither the action nor the parameter
		return "ssm:GetParameters"
	}
	return actionOf(err)
}

// credentialsError converts err to a *provision.CredentialsError; nil if err is not about credentials or
// permissions.
func credentialsError(err error) *provision.CredentialsError {
	code := codeOf(err)
	var none *noCredentialsError
	if errors.As(err, &none) {
		return &provision.CredentialsError{Cloud: service.CloudAWS, Err: none.plainError(), Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in: aws sso login"}
	}
	if hint, ok := credentialHints[code]; ok {
		return &provision.CredentialsError{Cloud: service.CloudAWS, Code: code, Err: plainError(err), Hint: hint}
	}
	if slices.Contains(deniedCodes, code) {
		action := deniedAction(err)
		return &provision.CredentialsError{Cloud: service.CloudAWS, Action: action, Code: code, Err: plainError(err), Hint: "allow " + action + " for the caller in an IAM policy"}
	}
	return nil
}

// capacityError converts err to a *provision.CapacityError; nil if err is not about capacity.
func capacityError(o provision.Offering, err error) *provision.CapacityError {
	code := codeOf(err)
	scope, ok := capacityScopes[code]
	if !ok {
		return nil
	}
	if scope == provision.ScopeZone && o.Zone == "" {
		scope = provision.ScopeRegion // AWS tried all zones
	}
	return &provision.CapacityError{Offering: o, Scope: scope, Code: code, Err: plainError(err)}
}

// markedCredentials wraps a credentials provider and marks its errors as noCredentialsError.
type markedCredentials struct{ aws.CredentialsProvider }

// noCredentialsError reports that a credentials provider returned no credentials.
type noCredentialsError struct{ err error }

func (e *noCredentialsError) Error() string { return e.err.Error() }
func (e *noCredentialsError) Unwrap() error { return e.err }

// plainError returns the error without the attempts at the metadata server, which only machines in AWS have.
func (e *noCredentialsError) plainError() error { return provision.ShortenCredentialsError(e.err) }

// Retrieve returns the credentials.
func (a markedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := a.CredentialsProvider.Retrieve(ctx)
	if err != nil && ctx.Err() == nil {
		return c, &noCredentialsError{err}
	}
	return c, err
}
