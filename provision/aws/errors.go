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

// capacityScopes are EC2's codes for an offering that cannot be had, with how far
// each reaches.
var capacityScopes = map[string]provision.Scope{
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

// falterScopes are the codes of a machine's state for what EC2 could not do after it had
// granted the launch.
var falterScopes = map[string]provision.Scope{
	"Server.InsufficientInstanceCapacity": provision.ScopeZone,
	"Server.InternalError":                provision.ScopeZone,
	"Client.VolumeLimitExceeded":          provision.ScopeQuota,
}

// misfits are those for what will go wrong again wherever it is tried, with what to look for.
var misfits = map[string]string{
	"Client.InternalError":            "may EC2, and AWSServiceRoleForEC2Spot for spot, use the key that the account's disks are encrypted with?",
	"Client.InvalidSnapshot.NotFound": "the image's snapshot is not there",
}

// codeNoSpotRole is EC2's code for the first spot machine of an account, asked for by
// somebody who may not make the role that EC2 needs for it.
const codeNoSpotRole = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"

// unknownCallers are the codes of a caller whom AWS does not know, or no longer, with
// what to do about it.
var unknownCallers = map[string]string{
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
	"OptInRequired":               "the account is not signed up for this service: finish it in the AWS console",
	"PendingVerification":         "AWS is still verifying the account for this region; wait for its message",
	codeNoSpotRole:                "the account has never used spot: run aws iam create-service-linked-role --aws-service-name spot.amazonaws.com once",
	"Blocked":                     "AWS has blocked the account: write to its support",
}

// forbidden are the codes of a caller who is known and may not do this.
var forbidden = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"}

// codeOf is the code of an error of AWS; empty for any other error.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// explain says what was being done when err came, in the types of the house: a
// *provision.CredentialsError is one, whatever it came from, and a region whose host
// nobody knows is a *provision.SpecError.
func explain(doing string, err error) error {
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
		return &provision.SpecError{Err: fmt.Errorf("%s: there is no %s: is it a region of AWS? %w", doing, dns.Name, dns)}
	}
	return fmt.Errorf("%s: %w", doing, plain(err))
}

// encodedMessage begins the part of a refusal that only AWS itself can read.
const encodedMessage = " Encoded authorization failure message:"

// plain is an error of AWS without the SDK's words around it: code and message.
func plain(err error) error {
	var api smithy.APIError
	var already *Error
	if errors.As(err, &api) && !errors.As(err, &already) {
		message, _, _ := strings.Cut(api.ErrorMessage(), encodedMessage)
		return &Error{Action: actionOf(err), Code: api.ErrorCode(), Message: message, err: err}
	}
	return err
}

// Error is what AWS answered.
type Error struct {
	Action  string // ec2:RunInstances
	Code    string // AWS's own
	Message string // AWS's own
	err     error
}

// Error gives action, code and message.
func (e *Error) Error() string { return e.Action + ": " + e.Code + ": " + e.Message }

// Unwrap gives the SDK's error.
func (e *Error) Unwrap() error { return e.err }

// actionOf is the action that failed, as permissions spell it.
func actionOf(err error) string {
	var op *smithy.OperationError
	if !errors.As(err, &op) {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(op.Service(), " ", "")) + ":" + op.Operation()
}

// denied finds the action in the text of a refusal: a launch is refused, too, for what is
// part of it, such as handing over a role.
var denied = regexp.MustCompile(`not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)`)

// deniedAction is the action that the caller may not do.
func deniedAction(err error) string {
	if found := denied.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return actionOf(err)
}

// credentialsError is err as one of credentials, or nil where it is another.
func credentialsError(err error) *provision.CredentialsError {
	code := codeOf(err)
	var none *noCredentialsError
	if errors.As(err, &none) {
		return &provision.CredentialsError{Cloud: service.CloudAWS, Err: none.err, Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in: aws sso login"}
	}
	if hint, ok := unknownCallers[code]; ok {
		return &provision.CredentialsError{Cloud: service.CloudAWS, Code: code, Err: plain(err), Hint: hint}
	}
	if slices.Contains(forbidden, code) {
		action := deniedAction(err)
		return &provision.CredentialsError{Cloud: service.CloudAWS, Action: action, Code: code, Err: plain(err), Hint: "let the caller do " + action + " by an IAM policy"}
	}
	return nil
}

// capacityError is err as a refusal of an offering, or nil where it is another.
func capacityError(o provision.Offering, err error) *provision.CapacityError {
	code := codeOf(err)
	scope, ok := capacityScopes[code]
	if !ok {
		return nil
	}
	if scope == provision.ScopeZone && o.Zone == "" {
		scope = provision.ScopeRegion // AWS looked in all of them
	}
	return &provision.CapacityError{Offering: o, Scope: scope, Code: code, Err: plain(err)}
}

// asking is a source of credentials whose errors can be told from others.
type asking struct{ aws.CredentialsProvider }

// noCredentialsError is a source of credentials that has none.
type noCredentialsError struct{ err error }

func (e *noCredentialsError) Error() string { return e.err.Error() }
func (e *noCredentialsError) Unwrap() error { return e.err }

// Retrieve gives the credentials.
func (a asking) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := a.CredentialsProvider.Retrieve(ctx)
	if err != nil && ctx.Err() == nil {
		return c, &noCredentialsError{err}
	}
	return c, err
}
