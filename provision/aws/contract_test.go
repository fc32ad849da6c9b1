package aws_test

import (
	"net/http/httptest"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/aws"
)

func TestProviderConformance(t *testing.T) {
	testkit.Slow(t)
	for name, faults := range map[string]func() *testcloud.Faults{
		"a cloud that does as it should": func() *testcloud.Faults { return &testcloud.Faults{} },
		"lists that lag behind":          func() *testcloud.Faults { return &testcloud.Faults{StaleLists: 2} },
		"every third answer is lost": func() *testcloud.Faults {
			return &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
				if c.Number%3 == 0 {
					return testcloud.ResponseLost
				}
				return testcloud.Served
			}}
		},
		"every third call is throttled, every fifth fails": func() *testcloud.Faults {
			return &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
				switch {
				case c.Number%3 == 0:
					return testcloud.Throttled
				case c.Number%5 == 0:
					return testcloud.InternalError
				}
				return testcloud.Served
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) conformance.Subject {
				f := faults()
				cloud := newCloud(f)
				cloud.ShutdownReads, cloud.ProfileLagLaunches, cloud.PageSize = 2, 2, 2
				p := open(t, cloud)
				other := roleFor(provision.RoleReplica)
				other.Service = "other"
				return conformance.Subject{
					Provider: p, Reopen: func(t *testing.T) provision.Provider { return open(t, cloud) },
					Service: "chat", Desired: chat(), Other: other, HasOwners: true,
					WaitListed: func() {
						for range f.StaleLists { // a stale list becomes current after some calls
							for _, name := range []string{"chat", "other"} {
								if _, err := p.List(t.Context(), name); err != nil {
									t.Fatal(err)
								}
							}
						}
					},
				}
			})
		})
	}
}

// A cloud with a configured endpoint is reached over the network, like AWS itself.
func TestEndpoint(t *testing.T) {
	cloud := newCloud(nil)
	server := httptest.NewServer(cloud)
	defer server.Close()
	c := config(cloud, "us-east-1", "us-west-2")
	c.Endpoint, c.Transport = server.URL, server.Client().Transport
	defer server.Client().CloseIdleConnections()
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	launch(t, p, chat()...)
	if changes := provision.Diff(chat(), list(t, p)); len(changes) != 0 {
		t.Errorf("there is to do: %+v", changes)
	}
}
