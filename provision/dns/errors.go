package dns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/provision"
)

// unknownCodes are AWS's codes for missing, invalid or expired credentials; deniedCodes those for a
// caller without the permission.
var (
	unknownCodes = []string{
		"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId", "InvalidSignatureException",
		"MissingAuthenticationToken", "MissingAuthenticationTokenException", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch",
		"UnrecognizedClientException",
	}
	deniedCodes = []string{"AccessDenied", "AccessDeniedException", "NotAuthorizedException", "UnauthorizedOperation"}
)

// wrapError adds what was being done to err, and converts errors of credentials and permissions.
func wrapError(err error, action, format string, args ...any) error {
	var api smithy.APIError
	if errors.As(err, &api) {
		refused := &provision.CredentialsError{Cloud: service.CloudAWS, Code: api.ErrorCode(), Err: err}
		switch {
		case slices.Contains(unknownCodes, refused.Code):
			refused.Hint = "sign in again (aws sso login, or new keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and check with: aws sts get-caller-identity"
			return refused
		case slices.Contains(deniedCodes, refused.Code):
			refused.Action = "route53:" + action
			refused.Hint = "allow " + refused.Action + " for this identity in the hosted zone, and for health checks"
			return refused
		}
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// specError returns an error for a name in service.yaml that cannot be published.
func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// noCredentials returns an error for missing credentials.
func noCredentials(err error) error {
	return &provision.CredentialsError{
		Cloud: service.CloudAWS, Err: err,
		Hint: "Route 53 requires an AWS account: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure",
	}
}
