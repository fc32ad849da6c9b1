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

// startFailureScopes maps the state codes of a machine that EC2 failed to start, after it had granted the
// launch, to the scope of each.
var startFailureScopes = map[string]provision.CapacityScope{
	"Server.InsufficientInstanceCapacity": provision.ScopeZone,
	"Server.InternalError":                provision.ScopeZone,
	"Client.VolumeLimitExceeded":          provision.ScopeQuota,
}

// permanentStartFailures maps the state codes of a machine that will fail wherever it is launched to a hint.
var permanentStartFailures = map[string]string{
	"Client.InternalError":            "let EC2, and AWSServiceRoleForEC2Spot for spot, use the KMS key of the account's disks",
	"Client.InvalidSnapshot.NotFound": "the snapshot of the image does not exist: use another image",
}

// codeNoSpotRole is EC2's code for the first spot machine of an account, launched by a caller who may
// not create the service-linked role that EC2 needs for it.
const codeNoSpotRole = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"

// credentialHints maps the codes of missing, invalid or expired credentials to a hint.
var credentialHints = map[string]string{
	"AuthFailure":                 "check the keys; if only this region refuses, enable it for the account",
	"UnrecognizedClientException": "check the keys; if only this region refuses, enable it for the account",
	"InvalidClientTokenId":        "check the access key: aws sts get-caller-identity",
	"SignatureDoesNotMatch":       "check the secret key, and this machine's clock",
	"InvalidSignatureException":   "check the secret key, and this machine's clock",
	"IncompleteSignature":         "check the secret key",
	"MissingAuthenticationToken":  "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
	"ExpiredToken":                "log in again: aws sso login, or fetch new session keys",
	"ExpiredTokenException":       "log in again: aws sso login, or fetch new session keys",
	"RequestExpired":              "set this machine's clock, or log in again: aws sso login",
	"OptInRequired":               "the account is not signed up for this service: complete the sign-up in the AWS console",
	"PendingVerification":         "AWS is still verifying the account for this region; wait for its message",
	codeNoSpotRole:                "the account has never used spot: run aws iam create-service-linked-role --aws-service-name spot.amazonaws.com once",
	"Blocked":                     "AWS has blocked the account: contact AWS support",
}

// deniedCodes are the codes of an authenticated caller without the permission.
var deniedCodes = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"}

// codeOf returns the code of an error of AWS; empty for any other error.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// wrapError adds what was being done to err, and maps it to the types of package provision: credentials
// become a *provision.CredentialsError, whatever the call was, and a region whose host does not resolve
// a *provision.SpecError.
func wrapError(doing string, err error) error {
	var known *provision.CredentialsError
	var owned *provision.OwnedError
	var refused *provision.CapacityError
	var unfit *provision.SpecError
	if err == nil || errors.As(err, &known) || errors.As(err, &owned) || errors.As(err, &refused) || errors.As(err, &unfit) {
		return err
	}
	if e := credentialsError(err); e != nil {
		return e
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return &provision.SpecError{Err: fmt.Errorf("%s: host %s not found; check the name of the region: %w", doing, dns.Name, dns)}
	}
	return fmt.Errorf("%s: %w", doing, plainError(err))
}

// encodedMessage is the start of the part of a refusal that only AWS itself can decode.
const encodedMessage = " Encoded authorization failure message:"

// plainError reduces an error of the SDK to action, code and message.
func plainError(err error) error {
	var api smithy.APIError
	var already *Error
	if errors.As(err, &api) && !errors.As(err, &already) {
		message, _, _ := strings.Cut(api.ErrorMessage(), encodedMessage)
		return &Error{Action: actionOf(err), Code: api.ErrorCode(), Message: message, err: err}
	}
	return err
}

// Error is an error response of AWS.
type Error struct {
	Action  string // the code of AWS
	Code    string // the message of AWS
	Message string // AWS's own
	err     error
}

// Error returns action, code and message.
func (e *Error) Error() string { return e.Action + ": " + e.Code + ": " + e.Message }

// Unwrap returns the SDK's error.
func (e *Error) Unwrap() error { return e.err }

// actionOf returns the failed action, in the notation of permissions.
func actionOf(err error) string {
	var op *smithy.OperationError
	if !errors.As(err, &op) {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(op.Service(), " ", "")) + ":" + op.Operation()
}

// notAuthorized matches the action in the text of a refusal: a launch may be refused for an action that it
// implies, such as passing a role.
var notAuthorized = regexp.MustCompile(`not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)`)

// deniedAction returns the action that the caller lacks permission for.
func deniedAction(err error) string {
	if found := notAuthorized.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return actionOf(err)
}

// credentialsError converts err to an error of credentials, or nil where it is another error.
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

// capacityError converts err to a refusal of an offering, or nil where it is another error.
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

// markedCredentials wraps a credentials provider so that its errors can be recognized.
type markedCredentials struct{ aws.CredentialsProvider }

// noCredentialsError reports that a credentials provider has no credentials.
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
