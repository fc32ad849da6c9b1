package dns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/provision"
)

// unknownCodes are AWS's codes for a caller that it does not know, or no longer;
// deniedCodes those for one that may not do what was asked.
var (
	unknownCodes = []string{
		"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId", "InvalidSignatureException",
		"MissingAuthenticationToken", "MissingAuthenticationTokenException", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch",
		"UnrecognizedClientException",
	}
	deniedCodes = []string{"AccessDenied", "AccessDeniedException", "NotAuthorizedException", "UnauthorizedOperation"}
)

// explain says what was being done when AWS failed, and tells missing permission
// from everything else.
func explain(err error, action, format string, args ...any) error {
	var api smithy.APIError
	if errors.As(err, &api) {
		refused := &provision.CredentialsError{Cloud: service.CloudAWS, Code: api.ErrorCode(), Err: err}
		switch {
		case slices.Contains(unknownCodes, refused.Code):
			refused.Hint = "sign in again (aws sso login, or new keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and look with: aws sts get-caller-identity"
			return refused
		case slices.Contains(deniedCodes, refused.Code):
			refused.Action = "route53:" + action
			refused.Hint = "let this identity do " + refused.Action + " in the hosted zone, and on health checks"
			return refused
		}
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// unfit is a name that service.yaml asks for and that cannot be had.
func unfit(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// noCredentials says that there is nothing to sign calls with.
func noCredentials(err error) error {
	return &provision.CredentialsError{
		Cloud: service.CloudAWS, Err: err,
		Hint: "Route 53 needs an account of AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure",
	}
}
