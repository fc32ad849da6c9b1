package aws_test

import (
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// Machines at Google with the service account of the grant use the role of balancers, and can do there what a controller
// at AWS can. Every other token, another role and a role without the grant are refused.
func TestGoogleMachinesUseRole(t *testing.T) {
	const account, other = "skyserve-chat-lb@p.iam.gserviceaccount.com", "skyserve-other-lb@p.iam.gserviceaccount.com"
	cloud, google := newCloud(nil), testcloud.NewGCE("p", nil)
	cloud.GoogleTokens = google.VerifyIdentityToken
	cloud.AddReservation("us-east-1", "cr-mine", "us-east-1b", "g6.xlarge", 1, false)
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	operator := open(t, cloud)
	federated := provision.GrantFederated(testcloud.UniqueID(account))
	launch(t, operator, append(chat(), roleFor(provision.RoleBalancer, provision.GrantOperate, provision.GrantReplaceBalancers, federated), peersFirewall("192.0.2.1"))...)
	role, err := operator.RoleARN(t.Context(), "chat", provision.RoleBalancer)
	if err != nil || !strings.HasSuffix(role, ":role/skyserve/chat/skyserve-chat-balancer") {
		t.Fatal(role, err)
	}
	now := time.Now()
	claims := func(change func(*testcloud.GoogleClaims)) string {
		id := testcloud.UniqueID(account)
		c := testcloud.GoogleClaims{
			Issuer: "https://accounts.google.com", Audience: "sts.amazonaws.com", AuthorizedParty: id, Subject: id, Email: account,
			IssuedAt: now.Unix(), Expires: now.Add(time.Hour).Unix(),
		}
		if change != nil {
			change(&c)
		}
		return testcloud.SignGoogleToken(c)
	}
	asGoogle := func(role, token string) *aws.Provider {
		c := config(cloud, "us-east-1", "us-west-2")
		c.MachinesOnly = true
		c.Credentials = aws.FederatedCredentials(role, "skyserve-chat", "us-east-1", server.URL, func() ([]byte, error) { return []byte(token), nil })
		p, err := aws.New(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := controlBalancers(t.Context(), asGoogle(role, claims(nil))); err != nil {
		t.Errorf("a machine at Google: %v", err)
	}
	good := claims(nil)
	for name, token := range map[string]string{
		"another audience": claims(func(c *testcloud.GoogleClaims) { c.Audience = "https://example.com" }),
		"another account": claims(func(c *testcloud.GoogleClaims) {
			c.Subject, c.AuthorizedParty = testcloud.UniqueID(other), testcloud.UniqueID(other)
		}),
		"another client of the account": claims(func(c *testcloud.GoogleClaims) { c.AuthorizedParty = testcloud.UniqueID(other) }),
		"no client":                     claims(func(c *testcloud.GoogleClaims) { c.AuthorizedParty = "" }),
		"an expired token":              claims(func(c *testcloud.GoogleClaims) { c.Expires = now.Add(-time.Minute).Unix() }),
		"another issuer":                claims(func(c *testcloud.GoogleClaims) { c.Issuer = "https://example.com" }),
		"a changed token":               good[:len(good)-8] + "AAAAAAAA",
		"no token":                      "none",
	} {
		_, err := asGoogle(role, token).List(t.Context(), "chat")
		var refused *provision.CredentialsError
		if !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want that it is refused", name, err)
		}
	}
	var refused *provision.CredentialsError
	if _, err := asGoogle(strings.Replace(role, "-balancer", "-replica", 1), claims(nil)).List(t.Context(), "chat"); !errors.As(err, &refused) {
		t.Errorf("the role of replicas: got %v, want that it is refused", err)
	}
	withdrawn := roleFor(provision.RoleBalancer, provision.GrantOperate, provision.GrantReplaceBalancers)
	withdrawn.SpecHash = "withdrawn"
	launch(t, operator, withdrawn)
	if _, err := asGoogle(role, claims(nil)).List(t.Context(), "chat"); !errors.As(err, &refused) {
		t.Errorf("without the grant: got %v, want that it is refused", err)
	}
}

// A role that somebody lets others assume is repaired, as a role with a changed policy is.
func TestTrustPolicyIsRepaired(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	want := roleFor(provision.RoleBalancer, provision.GrantOperate, provision.GrantFederated("1"))
	launch(t, p, want)
	if changes := provision.Diff([]provision.Desired{want}, list(t, p)); len(changes) != 0 {
		t.Fatalf("there is still to do %+v", changes)
	}
	trusted := cloud.TrustPolicy("skyserve-chat-balancer")
	cloud.SetTrustPolicy("skyserve-chat-balancer", strings.Replace(trusted, "ec2.amazonaws.com", "lambda.amazonaws.com", 1))
	changes := provision.Diff([]provision.Desired{want}, list(t, p))
	if len(changes) != 1 {
		t.Fatalf("got %+v, want one repair", changes)
	}
	if _, err := provision.Apply(t.Context(), changes, p, provision.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := cloud.TrustPolicy("skyserve-chat-balancer"); got != trusted {
		t.Errorf("got %s, want %s", got, trusted)
	}
	if !slices.ContainsFunc(list(t, p), func(o provision.Object) bool { return o.SpecHash == want.SpecHash }) {
		t.Errorf("got %+v", list(t, p))
	}
}

// In a service without machines at AWS, machines at Google change the records of its name by a role for them alone, which
// no machine at AWS can have. The operator needs no region, and the role is listed, repaired and removed like any other.
func TestRoleForRecordsAlone(t *testing.T) {
	const account, zone = "skyserve-chat-lb@p.iam.gserviceaccount.com", "Z0123456789ABCDEFGHIJ"
	cloud, google := newCloud(nil), testcloud.NewGCE("p", nil)
	cloud.GoogleTokens = google.VerifyIdentityToken
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	c := config(cloud)
	if _, err := aws.New(t.Context(), c); err == nil {
		t.Error("a provider without regions is accepted")
	}
	c.IdentitiesOnly = true
	operator, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	want := roleFor("records", provision.GrantRecords(zone, "chat.example.com", []string{"check-1"}), provision.GrantFederated(testcloud.UniqueID(account)))
	launch(t, operator, want)
	if changes := provision.Diff([]provision.Desired{want}, list(t, operator)); len(changes) != 0 {
		t.Fatalf("there is still to do %+v", changes)
	}
	cloud.Configure(func() { cloud.DenialCode = func(_, action string) string { return "AccessDenied" } })
	var denied *provision.CredentialsError
	if _, err := operator.List(t.Context(), "chat"); !errors.As(err, &denied) || denied.Hint != "allow iam:ListInstanceProfiles for the caller in an IAM policy, or set gcp.federation to false" {
		t.Errorf("without permission: %v, hint %q", err, denied.Hint)
	}
	cloud.Configure(func() { cloud.DenialCode = nil })
	const name = "skyserve-chat-records"
	if trusted := cloud.TrustPolicy(name); strings.Contains(trusted, "ec2") || !strings.Contains(trusted, "accounts.google.com") {
		t.Errorf("the role trusts %s", trusted)
	}
	if policy := cloud.RolePolicy(name, "skyserve"); strings.Contains(policy, `"ec2:`) || strings.Contains(policy, `"iam:`) || !strings.Contains(policy, "*._skyserve.chat.example.com") || !strings.Contains(policy, "healthcheck/check-1") {
		t.Errorf("the role permits %s", policy)
	}
	role, err := operator.RoleARN(t.Context(), "chat", "records")
	if err != nil || !strings.HasSuffix(role, ":role/skyserve/chat/"+name) {
		t.Fatal(role, err)
	}
	id, now := testcloud.UniqueID(account), time.Now()
	token := testcloud.SignGoogleToken(testcloud.GoogleClaims{
		Issuer: "https://accounts.google.com", Audience: "sts.amazonaws.com", AuthorizedParty: id, Subject: id, Email: account, IssuedAt: now.Unix(), Expires: now.Add(time.Hour).Unix(),
	})
	creds := aws.FederatedCredentials(role, "skyserve", "", server.URL, func() ([]byte, error) { return []byte(token), nil })
	if _, err := creds.Retrieve(t.Context()); err != nil {
		t.Errorf("a machine at Google cannot assume the role: %v", err)
	}
	machines := config(cloud, "us-east-1")
	machines.MachinesOnly, machines.Credentials = true, creds
	p, err := aws.New(t.Context(), machines)
	if err != nil {
		t.Fatal(err)
	}
	var refused *provision.CredentialsError
	if _, err := p.List(t.Context(), "chat"); !errors.As(err, &refused) {
		t.Errorf("it lists machines: got %v, want that it is refused", err)
	}
	if _, err := operator.Launch(t.Context(), roleFor("records", provision.GrantRecords(zone, "chat.example.com", nil))); err == nil {
		t.Error("a role that nobody can use is accepted")
	}
	cloud.SetTrustPolicy(name, strings.Replace(cloud.TrustPolicy(name), id, "2", 1))
	changes := provision.Diff([]provision.Desired{want}, list(t, operator))
	if len(changes) != 1 {
		t.Fatalf("got %+v, want one repair", changes)
	}
	if _, err := provision.Apply(t.Context(), changes, operator, provision.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, o := range list(t, operator) {
		if err := operator.Terminate(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if remaining := cloud.RemainingResources(); len(remaining) > 0 {
		t.Errorf("remaining: %q", remaining)
	}
}
