package gcp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// A machine at AWS lists the machines of its service as the service account of balancers once the operator has executed
// the commands of the check. Machines with another role of AWS are refused. (The emulated AWS, in cmd/skyserve, verifies
// signatures.)
func TestMachineAtAWSActsAsServiceAccount(t *testing.T) {
	const account, role = "123456789012", "skyserve-chat-balancer"
	g := newGCE(nil)
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	operator := provider(g)
	email, id, err := operator.BalancerAccount(t.Context(), "chat")
	if err != nil || email != "skyserve-chat-lb@p.iam.gserviceaccount.com" || id != testcloud.UniqueID(email) {
		t.Fatal(email, id, err)
	}
	f, err := operator.FederationFor(t.Context(), "chat", account)
	if err != nil || f.ServiceAccount != email {
		t.Fatal(f, err)
	}
	asRole := func(role string) error {
		t.Helper()
		g.VerifyAWS = func(r *http.Request) (string, string, error) {
			if r.URL.Query().Get("Action") != "GetCallerIdentity" {
				return "", "", errors.New("not GetCallerIdentity")
			}
			return "arn:aws:sts::" + account + ":assumed-role/" + role + "/i-1", account, nil
		}
		creds, err := gcp.FederatedCredentials(f, "us-east-1", server.URL, func(context.Context, string) (string, string, string, error) {
			return "ASIAEXAMPLE", "secret", "token", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c := config(g)
		c.MachinesOnly, c.Credentials = true, creds
		_, err = gcp.New(c).List(t.Context(), "chat")
		return err
	}
	refused := func(role string) {
		t.Helper()
		var denied *provision.CredentialsError
		if err := asRole(role); !errors.As(err, &denied) {
			t.Errorf("%s: got %v, want that it is refused", role, err)
		}
	}
	refused(role)
	missing := operator.CheckFederation(t.Context(), f, role)
	if missing.OK {
		t.Fatalf("without the pool the check finds %+v", missing)
	}
	if err := g.RunGcloud(missing.Hint); err != nil {
		t.Fatal(err)
	}
	if found := operator.CheckFederation(t.Context(), f, role); !found.OK {
		t.Errorf("after its commands the check finds %+v", found)
	}
	if err := asRole(role); err != nil {
		t.Errorf("after the commands: %v", err)
	}
	refused(strings.Replace(role, "balancer", "replica", 1))
}
