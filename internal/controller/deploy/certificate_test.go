package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Each changed reason is reported until all balancers have a certificate. Machines that are not
// balancers are ignored, and the wait for unresponsive balancers is limited.
func TestAwaitCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		asked := map[string]int{}
		ask := func(_ context.Context, o provision.Object) (*telemetry.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[o.ID]++
			switch n := asked[o.ID]; {
			case o.Kind != provision.KindBalancer:
				t.Errorf("%s was queried", o.ID)
			case o.ID == "lb-us-east-1-1" && n == 1:
				return nil, errors.New("connection refused")
			case o.ID == "lb-us-east-1-0" && n < 3:
				return &telemetry.Certificate{Waiting: "it is being obtained"}, nil
			case o.ID == "lb-us-east-1-0" && n == 3:
				return &telemetry.Certificate{Waiting: "no record may be written"}, nil
			}
			return &telemetry.Certificate{ExpiresAt: &began}, nil
		}
		var reported []string
		progress := func(id, why string) { reported = append(reported, id+" "+why) }
		if err := deploy.AwaitCertificates(t.Context(), testMachines(), ask, progress); err != nil {
			t.Fatal(err)
		}
		want := []string{"lb-us-east-1-0 it is being obtained", "lb-us-east-1-1 connection refused", "lb-us-east-1-0 no record may be written"}
		if fmt.Sprint(reported) != fmt.Sprint(want) || time.Since(began) != 9*time.Second {
			t.Errorf("after %s: got %q, want %q", time.Since(began), reported, want)
		}

		never := func(context.Context, provision.Object) (*telemetry.Certificate, error) {
			return &telemetry.Certificate{Waiting: "no record may be written"}, nil
		}
		late := errors.New("not ready within 1m0s")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, late)
		defer cancel()
		err := deploy.AwaitCertificates(ctx, testMachines(), never, func(string, string) {})
		if !errors.Is(err, late) || !strings.Contains(err.Error(), "lb-europe-west4-0: no record may be written") {
			t.Errorf("got %v", err)
		}
	})
}

// A balancer without a certificate does not serve: the service is starting, and status shows why.
func TestStatusShowsCertificates(t *testing.T) {
	ends := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, tt := range []struct {
		name, want  string
		certificate *telemetry.Certificate
		err         error
		state       deploy.ServiceState
	}{
		{"waiting", "STARTING waiting for certificate: no record may be written", &telemetry.Certificate{Waiting: "no record may be written"}, nil, deploy.StateStarting},
		{"not renewed", "READY the newest certificate is invalid, the current one expires on 2031-02-03: refused", &telemetry.Certificate{ExpiresAt: &ends, Problem: "refused"}, nil, deploy.StateReady},
		{"well", "READY", &telemetry.Certificate{ExpiresAt: &ends}, nil, deploy.StateReady},
		{"does not respond", "READY", nil, errors.New("connection refused"), deploy.StateReady},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, i := newInspector(t, nil)
			i.Deployer.Spec.Balancer.TLS, i.Deployer.Spec.Balancer.Insecure = &service.TLS{Cert: "c", Key: "k"}, false
			i.Deployer.UserData = nil // the public port has changed, which this test ignores
			i.Snapshot = func(_ context.Context, o provision.Object) (*telemetry.Snapshot, error) {
				if o.Kind != provision.KindBalancer {
					t.Errorf("%s was queried", o.ID)
				}
				self := telemetry.BalancerSnapshot{ID: o.ID, Certificate: tt.certificate}
				return &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: o.Region, Balancers: []telemetry.BalancerSnapshot{self}}}}, tt.err
			}
			s, err := i.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := machineState(t, s, "lb-us-east-1-0"); got != tt.want || s.State != tt.state || s.PlainHTTP {
				t.Errorf("got %s, and the service is %s", got, s.State)
			}
			if got := s.Regions[0].Balancers[0].Certificate; got != tt.certificate {
				t.Errorf("the certificate is %+v", got)
			}
		})
	}
}
