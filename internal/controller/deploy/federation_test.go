package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/remote"
)

// oneAtGoogle is a service whose only balancer at Google the controllers at AWS can replace.
var oneAtGoogle = strings.Replace(threeBalancers, "aws/us-west-2", "gcp/us-central1", 1)

// federated returns a controller that calls the other cloud itself, or whose calls that cloud rejects.
func (n *controlWorld) federated(rejects error) (rc *deploy.Reconciler, asked *[]service.Region) {
	rc, asked = n.controller(), new([]service.Region)
	rc.Federate = func(_ context.Context, _ json.RawMessage, spec *service.Spec, owner string, home service.Region) (remote.CallFunc, error) {
		h := &remote.Handler{Service: spec.Name, Owner: owner, Balancers: true, Provider: n.reconcilerWorld, ByRegion: map[service.Region]provision.Provider{}}
		*asked = []service.Region{home}
		for _, r := range spec.Regions {
			h.ByRegion[r.Name], *asked = worldProvider{n.reconcilerWorld, worldLister{n.reconcilerWorld, r.Name}}, append(*asked, r.Name)
		}
		return func(ctx context.Context, call remote.CallKind, body []byte) ([]byte, error) {
			if rejects != nil {
				return nil, rejects
			}
			return h.Call(ctx, call, body)
		}, nil
	}
	return rc, asked
}

// worldProvider is the provider of one region.
type worldProvider struct {
	*reconcilerWorld
	lister worldLister
}

func (p worldProvider) List(ctx context.Context, name string) ([]provision.Object, error) {
	return p.lister.List(ctx, name)
}

// The only balancer of the other cloud is lost, and no machine there is left: the controller launches it with the
// identity of its own machine.
func TestControllerReplacesOnlyBalancerOfOtherCloud(t *testing.T) {
	const id = "lb-us-central1-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, oneAtGoogle)
		rc, asked := n.federated(nil)
		n.reconcileFor(t, rc, time.Minute, always)
		if len(*asked) != 2 || (*asked)[0] != "aws/us-east-1" || (*asked)[1] != "gcp/us-central1" {
			t.Errorf("it asked for %v", *asked)
		}
		before := n.balancers(id)
		n.ChangeObject(id, nil)
		n.reconcileFor(t, rc, time.Minute, always)
		after := n.balancers(id)
		if len(before) != 1 || len(after) != 1 || after[0].Handle == before[0].Handle {
			t.Fatalf("got %+v after %+v", after, before)
		}
		if got := n.accepted(n.party())[id]; len(got) != 1 || got[0] != after[0].Handle {
			t.Errorf("operators accept %v, want %s", got, after[0].Handle)
		}
	})
}

// Without access to the other cloud nothing is changed there, and an alert has the reason and the next step.
func TestControllerWithoutFederation(t *testing.T) {
	const id = "lb-us-central1-0"
	denied := &provision.CredentialsError{Cloud: service.CloudGCP, Err: errors.New("the pool does not exist")}
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, oneAtGoogle)
		rc, _ := n.federated(denied)
		n.ChangeObject(id, nil)
		n.reconcileFor(t, rc, 10*time.Minute, always)
		if got := n.balancers(id); len(got) != 0 {
			t.Errorf("it launched %+v", got)
		}
		n.wantAlert(rc, id, "the controllers in the other cloud have no access there: ")
		n.wantAlert(rc, id, "the pool does not exist")
	})
}

// A service that turns it off, or in which it is not needed, makes no call by federation.
func TestFederationIsNotUsed(t *testing.T) {
	for name, text := range map[string]string{
		"turned off": oneAtGoogle + "gcp: {federation: false}\n", "one cloud": threeBalancers, "two balancers in each cloud": strings.Replace(fourBalancers, "{name: aws/us-west-2,", "{name: gcp/us-central1, balancers: 2,", 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newControlWorld(t, text)
				rc, asked := n.federated(nil)
				n.reconcileFor(t, rc, time.Minute, always)
				if len(*asked) != 0 {
					t.Errorf("it asked for %v", *asked)
				}
			})
		})
	}
}
