package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/gcp"
)

// twoAtAWS is a service whose only balancer at Google the controllers at AWS replace.
func twoAtAWS(t *testing.T) *service.Spec {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(replicatedService))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// A machine at AWS acts as the service account of balancers at Google only after the commands of doctor, only with the
// role of the service's balancers, and with a request that it signed for this pool within the last minutes.
func TestMachinesAtAWSUseAccount(t *testing.T) {
	atAWS, google := testcloud.NewAWS(nil, "us-east-1", "eu-west-1"), testcloud.NewGCE("p", nil)
	atAWS.GoogleTokens, google.VerifyAWS = google.VerifyIdentityToken, atAWS.VerifyCallerIdentity
	serve := func(h *httptest.Server) string {
		t.Cleanup(h.Close)
		return h.URL
	}
	awsURL, googleURL := serve(httptest.NewServer(atAWS)), serve(httptest.NewServer(google))
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	if err := google.RunGcloud(googleCommandsWithout(t, "workload")); err != nil {
		t.Fatal(err)
	}
	spec := twoAtAWS(t)
	o := doctorOptions{clouds: cloudFlags{endpointAWS: awsURL, endpointGCP: googleURL, project: "p"}}
	places, err := o.clouds.providersOf(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	find := func() provision.CheckResult {
		t.Helper()
		found, err := o.findFederation(t.Context(), spec, places)
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0]
	}
	f, problem, err := federationOf(t.Context(), spec, places)
	if err != nil || problem != nil || f.Role != "" {
		t.Fatal(f, problem, err)
	}
	// keysOf returns the keys of a machine with a role of AWS, which for this test an emulated machine at Google assumes.
	keysOf := func(name string) func(context.Context, string) (string, string, string, error) {
		const trusted = "1"
		grant := provision.Desired{
			ID: "identity", Kind: provision.KindIdentity, Service: name, Owner: "me", Region: "aws/global", Labels: map[string]string{"role": "balancer"},
			Grants: []provision.Grant{provision.GrantFederated(trusted)},
		}
		if _, err := places[service.CloudAWS].Launch(t.Context(), grant); err != nil {
			t.Fatal(err)
		}
		role, err := places[service.CloudAWS].(roleNames).RoleARN(t.Context(), name, provision.RoleBalancer)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		token := testcloud.SignGoogleToken(testcloud.GoogleClaims{
			Issuer: "https://accounts.google.com", Audience: "sts.amazonaws.com", AuthorizedParty: trusted, Subject: trusted, IssuedAt: now.Unix(), Expires: now.Add(time.Hour).Unix(),
		})
		of := aws.FederatedCredentials(role, "machine", "us-east-1", awsURL, func() ([]byte, error) { return []byte(token), nil })
		return func(ctx context.Context, _ string) (string, string, string, error) {
			c, err := of.Retrieve(ctx)
			return c.AccessKeyID, c.SecretAccessKey, c.SessionToken, err
		}
	}
	lists := func(f gcp.Federation, keys func(context.Context, string) (string, string, string, error)) error {
		t.Helper()
		creds, err := gcp.FederatedCredentials(f, "us-east-1", googleURL, keys)
		if err != nil {
			t.Fatal(err)
		}
		c := o.clouds.googleConfig([]string{"us-central1"}, spec)
		c.Project, c.Credentials, c.MachinesOnly, c.Poll = f.Project, creds, true, -1
		_, err = gcp.New(c).List(t.Context(), "chat")
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		var denied *provision.CredentialsError
		if !errors.As(err, &denied) {
			t.Errorf("%s: got %v, want that it is refused", what, err)
		}
	}
	chat := keysOf("chat")
	refused("without the pool", lists(f.Google, chat))
	missing := find()
	if missing.OK || !strings.Contains(missing.Message, "has no provider for AWS account 123456789012") {
		t.Fatalf("doctor reports %+v", missing)
	}
	pool, grant, _ := strings.Cut(missing.Hint, "gcloud iam service-accounts")
	if err := google.RunGcloud(pool); err != nil {
		t.Fatal(err)
	}
	if again := find(); again.OK || !strings.Contains(again.Message, "may not act as service account") {
		t.Errorf("without the binding doctor reports %+v", again)
	}
	refused("without the binding", lists(f.Google, chat))
	if err := google.RunGcloud("gcloud iam service-accounts" + grant); err != nil {
		t.Fatal(err)
	}
	if err := lists(f.Google, chat); err != nil {
		t.Errorf("with the commands of doctor: %v", err)
	}
	if again := find(); !again.OK {
		t.Errorf("doctor still reports %+v", again)
	}
	refused("the role of another service", lists(f.Google, keysOf("other")))
	otherPool := f.Google
	otherPool.Pool = strings.Replace(otherPool.Pool, "/skyserve", "/other", 1)
	refused("another pool", lists(otherPool, chat))
	refused("a wrong secret", lists(f.Google, func(ctx context.Context, region string) (string, string, string, error) {
		key, _, token, err := chat(ctx, region)
		return key, "guessed", token, err
	}))
	refused("no keys", lists(f.Google, func(context.Context, string) (string, string, string, error) {
		return "", "", "", errors.New("the machine has no role")
	}))
	atAWS.Configure(func() { atAWS.Now = func() time.Time { return time.Now().Add(10 * time.Minute) } })
	refused("an old signature", lists(f.Google, chat))
	atAWS.Configure(func() { atAWS.Now = nil })
	if err := google.RunGcloud("gcloud iam service-accounts add-iam-policy-binding " + f.Google.ServiceAccount + " --role roles/iam.workloadIdentityUser --member principalSet://all"); err != nil {
		t.Fatal(err)
	}
	if other := find(); other.OK || !strings.Contains(other.Message, "can also be used by principalSet://all") {
		t.Errorf("another member: doctor reports %+v", other)
	}
}

// googleCommandsWithout returns the commands of googleCommands except those with a word.
func googleCommandsWithout(t *testing.T, word string) string {
	t.Helper()
	kept := ""
	for line := range strings.Lines(googleCommands(t)) {
		if !strings.Contains(line, word) {
			kept += line
		}
	}
	return kept
}
