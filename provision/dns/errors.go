package dns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/aws/smithy-go"

	"skyserve/internal/service"
	"skyserve/provision"
)

// credentialsCodes are AWS's codes for missing, invalid or expired credentials; deniedCodes are those for an
// authenticated caller without permission for the call.
var (
	credentialsCodes = []string{
		"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId", "InvalidSignatureException",
		"MissingAuthenticationToken", "MissingAuthenticationTokenException", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch",
		"UnrecognizedClientException",
	}
	deniedCodes = []string{"AccessDenied", "AccessDeniedException", "NotAuthorizedException", "UnauthorizedOperation"}
)

// wrapError adds the attempted action to err. It converts errors of credentials and permissions to
// *provision.CredentialsError.
func wrapError(err error, action, format string, args ...any) error {
	var api smithy.APIError
	if errors.As(err, &api) {
		rejected := &provision.CredentialsError{Cloud: service.CloudAWS, Code: api.ErrorCode(), Err: err}
		switch {
		case slices.Contains(credentialsCodes, rejected.Code):
			rejected.Hint = "log in again (aws sso login, or new keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and check with: aws sts get-caller-identity"
			return rejected
		case slices.Contains(deniedCodes, rejected.Code):
			rejected.Action = "route53:" + action
			rejected.Hint = "allow " + rejected.Action + " for the caller in an IAM policy, for the hosted zone and for health checks"
			return rejected
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
		Cloud: service.CloudAWS, Err: provision.ShortenCredentialsError(err),
		Hint: "Route 53 requires an AWS account: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in: aws sso login",
	}
}
