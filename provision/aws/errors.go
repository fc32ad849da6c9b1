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
	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/provision"
)

// capacityScopes maps EC2's codes for an unavailable offering to the scope of each.
var capacityScopes = map[string]provision.CapacityScope{
	"InsufficientInstanceCapacity":         provision.ScopeZone,
	"InsufficientHostCapacity":             provision.ScopeZone,
	"InsufficientCapacity":                 provision.ScopeZone,
	"InsufficientReservedInstanceCapacity": provision.ScopeZone,
	"UnfulfillableCapacity":                provision.ScopeZone,
	"ReservationCapacityExceeded":          provision.ScopeZone,
	"InsufficientFreeAddressesInSubnet":    provision.ScopeZone,
	"InsufficientAddressCapacity":          provision.ScopeZone,
	"InsufficientVolumeCapacity":           provision.ScopeZone,
	"Unsupported":                          provision.ScopeZone,
	"SpotMaxPriceTooLow":                   provision.ScopeZone,
	"MaxSpotInstanceCountExceeded":         provision.ScopeQuota,
	"MaxFleetCountExceeded":                provision.ScopeQuota,
	"VcpuLimitExceeded":                    provision.ScopeQuota,
	"InstanceLimitExceeded":                provision.ScopeQuota,
	"VolumeLimitExceeded":                  provision.ScopeQuota,
	"MaxIOPSLimitExceeded":                 provision.ScopeQuota,
	"NetworkInterfaceLimitExceeded":        provision.ScopeQuota,
}

// startFailureScopes maps the state codes of a machine that EC2 accepted but failed to start to the scope
// of each.
var startFailureScopes = map[string]provision.CapacityScope{
	"Server.InsufficientInstanceCapacity": provision.ScopeZone,
	"Server.InternalError":                provision.ScopeZone,
	"Client.VolumeLimitExceeded":          provision.ScopeQuota,
}

// permanentStartFailures maps the state codes of start failures that do not depend on the offering to a
// hint.
var permanentStartFailures = map[string]string{
	"Client.InternalError":            "allow EC2, and for spot the role AWSServiceRoleForEC2Spot, to use the KMS key that encrypts the disks",
	"Client.InvalidSnapshot.NotFound": "the snapshot of the image does not exist; use another image",
}

// codeNoSpotRole is EC2's code for the first spot machine of an AWS account if the caller has no
// permission to create the service-linked role that EC2 requires for spot.
const codeNoSpotRole = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"

// credentialHints maps the codes of missing, invalid or expired credentials to a hint.
var credentialHints = map[string]string{
	"AuthFailure":                 "check the access keys; if they work in other regions, enable this region for the AWS account",
	"UnrecognizedClientException": "check the access keys; if they work in other regions, enable this region for the AWS account",
	"InvalidClientTokenId":        "check the access key: aws sts get-caller-identity",
	"SignatureDoesNotMatch":       "check the secret key, and this machine's clock",
	"InvalidSignatureException":   "check the secret key, and this machine's clock",
	"IncompleteSignature":         "check the secret key",
	"MissingAuthenticationToken":  "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
	"ExpiredToken":                "log in again: aws sso login, or fetch new session keys",
	"ExpiredTokenException":       "log in again: aws sso login, or fetch new session keys",
	"RequestExpired":              "correct this machine's clock, or log in again: aws sso login",
	"OptInRequired":               "complete the sign-up of the AWS account for this AWS service in the AWS console",
	"PendingVerification":         "wait until AWS has verified the AWS account for this region: AWS sends an email",
	codeNoSpotRole:                "create the service-linked role for spot once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
	"Blocked":                     "AWS has blocked the AWS account; contact AWS support",
}

// deniedCodes are the codes for an authenticated caller without permission for the call.
var deniedCodes = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"}

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
	if err == nil || errors.As(err, &credentials) || errors.As(err, &owned) || errors.As(err, &capacity) || errors.As(err, &spec) {
		return err
	}
	if e := credentialsError(err); e != nil {
		return e
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return &provision.SpecError{Err: fmt.Errorf("%s: host %s not found: check the name of the region: %w", doing, dns.Name, dns)}
	}
	return fmt.Errorf("%s: %w", doing, plainError(err))
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
	return actionOf(err)
}

// credentialsError converts err to a *provision.CredentialsError; nil if err is not about credentials or
// permissions.
func credentialsError(err error) *provision.CredentialsError {
	code := codeOf(err)
	var none *noCredentialsError
	if errors.As(err, &none) {
		return &provision.CredentialsError{Cloud: service.CloudAWS, Err: none.err, Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in: aws sso login"}
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

// Retrieve returns the credentials.
func (a markedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := a.CredentialsProvider.Retrieve(ctx)
	if err != nil && ctx.Err() == nil {
		return c, &noCredentialsError{err}
	}
	return c, err
}
