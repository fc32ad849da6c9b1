package aws_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// Every code for rejected credentials or denied permissions is a CredentialsError with a hint that names the
// denied action. The call is not retried.
func TestCredentialErrorCodes(t *testing.T) {
	for code, named := range map[string]bool{
		"AuthFailure": false, "UnrecognizedClientException": false, "InvalidClientTokenId": false, "SignatureDoesNotMatch": false,
		"ExpiredToken": false, "ExpiredTokenException": false, "RequestExpired": false, "OptInRequired": false, "Blocked": false,
		"AuthFailure.ServiceLinkedRoleCreationNotPermitted": false,
		"UnauthorizedOperation":                             true, "AccessDenied": true, "AccessDeniedException": true,
	} {
		t.Run(code, func(t *testing.T) {
			f := &testcloud.Faults{}
			cloud := newCloud(f)
			launchPrerequisites(t, open(t, cloud), east)
			cloud.DenialCode = func(_, action string) string {
				if action == "ec2:RunInstances" {
					return code
				}
				return ""
			}
			p := open(t, cloud)
			_, err := p.Launch(t.Context(), machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
			var refused *provision.CredentialsError
			if !errors.As(err, &refused) || refused.Code != code || refused.Hint == "" || refused.Cloud != "aws" {
				t.Fatalf("got %v, want an error of credentials with a hint", err)
			}
			if (refused.Action == "ec2:RunInstances") != named {
				t.Errorf("the action is %q", refused.Action)
			}
			if n := f.CallCounts()["ec2:RunInstances"]; n != 1 {
				t.Errorf("called %d times", n)
			}
		})
	}
}

func TestListWithoutPermission(t *testing.T) {
	for _, action := range []string{"ec2:DescribeInstances", "ec2:DescribeSecurityGroups", "iam:ListRoles", "iam:ListInstanceProfiles"} {
		cloud := newCloud(nil)
		cloud.DenialCode = func(region, asked string) string {
			if asked == action && region == "us-east-1" {
				return "AccessDenied"
			}
			return ""
		}
		have, err := open(t, cloud).List(t.Context(), "chat")
		var refused *provision.CredentialsError
		if !errors.As(err, &refused) || refused.Action != action || have != nil {
			t.Errorf("%s: got %+v, %v, want no list", action, have, err)
		}
	}
}

// noCredentials is a credentials provider without credentials.
type noCredentials struct{}

func (noCredentials) Retrieve(context.Context) (sdk.Credentials, error) {
	return sdk.Credentials{}, errors.New("no EC2 IMDS role found")
}

func TestNoCredentials(t *testing.T) {
	c := config(newCloud(nil), "us-east-1")
	c.Credentials = noCredentials{}
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Offerings(t.Context(), east)
	var none *provision.CredentialsError
	if !errors.As(err, &none) || none.Action != "" || !strings.Contains(none.Hint, "AWS_PROFILE") {
		t.Errorf("got %v, want an error about missing credentials", err)
	}
	t.Setenv("AWS_PROFILE", "nobody")
	if _, err := aws.New(t.Context(), c); !errors.As(err, &none) || !strings.Contains(none.Hint, "AWS_PROFILE") {
		t.Errorf("a profile that is not there: got %v", err)
	}
}

// failing is a transport whose requests all fail.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestUnknownRegions(t *testing.T) {
	c := config(newCloud(nil), "us-nowhere-1")
	c.Transport = failing{&net.DNSError{Err: "no such host", Name: "ec2.us-nowhere-1.amazonaws.com", IsNotFound: true}}
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Offerings(t.Context(), "aws/us-nowhere-1")
	var spec *provision.SpecError
	if !errors.As(err, &spec) || !strings.Contains(err.Error(), "listing the offerings of aws/us-nowhere-1: host ec2.us-nowhere-1.amazonaws.com not found: check the name of the region") {
		t.Errorf("got %v", err)
	}
	if _, err := aws.New(t.Context(), aws.Config{}); err == nil {
		t.Error("New accepted a configuration without a region")
	}
}

// A connection that always fails is an error after all retries.
func TestUnreachableEndpoint(t *testing.T) {
	c := config(newCloud(nil), "us-east-1")
	c.Transport = failing{io.ErrUnexpectedEOF}
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context(), "chat"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

// The error of a launch without a permission names the permission, in one short line.
func TestLaunchErrorNamesDeniedAction(t *testing.T) {
	for _, action := range []string{"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole", "ssm:GetParameters"} {
		cloud := newCloud(nil)
		p := open(t, cloud)
		launchPrerequisites(t, p, east)
		cloud.DenialCode = func(_, asked string) string {
			if asked == action {
				return "UnauthorizedOperation"
			}
			return ""
		}
		_, err := p.Launch(t.Context(), machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
		var denied *provision.CredentialsError
		if !errors.As(err, &denied) || denied.Action != action || !strings.Contains(denied.Hint, action) {
			t.Errorf("without %s: got %v", action, err)
		} else if strings.Contains(err.Error(), "Encoded") || len(err.Error()) > 500 {
			t.Errorf("without %s the message has %d characters: %v", action, len(err.Error()), err)
		}
	}
}
