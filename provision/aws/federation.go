package aws

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Credentials authenticate calls.
type Credentials = aws.CredentialsProvider

// RoleARN returns the ARN of the IAM role of a service's identity, by the identity's role, whether it exists or not. Errors
// include *provision.CredentialsError.
func (p *Provider) RoleARN(ctx context.Context, name string, role provision.Role) (arn string, err error) {
	account, err := p.accountID(ctx)
	if err != nil {
		return "", wrapError("reading the number of the AWS account", err)
	}
	return fmt.Sprintf("arn:%s:iam::%s:role%s%s", partitionOf(p.home), account, iamPath(name), roleName(name, string(role))), nil
}

// identityTokens reads the identity tokens of a machine in another cloud.
type identityTokens func() ([]byte, error)

// GetIdentityToken implements stscreds.IdentityTokenRetriever.
func (t identityTokens) GetIdentityToken() ([]byte, error) { return t() }

// FederatedCredentials returns credentials of a role for a machine in another cloud, valid for an hour and renewed
// before they expire: the machine's identity tokens prove who it is. The role must trust them: see
// provision.GrantFederated. region is that of STS, empty = the default one, endpoint is Config.Endpoint, and session the
// name of the machine in AWS's logs.
func FederatedCredentials(role, session, region, endpoint string, token func() ([]byte, error)) Credentials {
	c := aws.Config{
		Region: cmp.Or(region, homeRegion), Credentials: aws.AnonymousCredentials{}, HTTPClient: &http.Client{Transport: provision.LimitCallsPerHost(awshttp.NewBuildableClient().GetTransport()), Timeout: callTimeout},
		Retryer: func() aws.Retryer { return retry.NewStandard() },
	}
	if endpoint != "" {
		c.BaseEndpoint = aws.String(endpoint)
	}
	return aws.NewCredentialsCache(stscreds.NewWebIdentityRoleProvider(sts.NewFromConfig(c), role, identityTokens(token), func(o *stscreds.WebIdentityRoleOptions) {
		o.RoleSessionName = session
	}))
}

// MachineCredentials returns the current credentials of this machine's IAM role: an access key, its secret and its
// session token.
func MachineCredentials(ctx context.Context, region string) (key, secret, token string, err error) {
	sdk, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
	if err != nil {
		return "", "", "", fmt.Errorf("loading the AWS configuration: %w", err)
	}
	c, err := sdk.Credentials.Retrieve(ctx)
	if err != nil {
		return "", "", "", &provision.CredentialsError{Cloud: service.CloudAWS, Action: "reading the credentials of this machine's IAM role", Err: err}
	}
	return c.AccessKeyID, c.SecretAccessKey, c.SessionToken, nil
}
