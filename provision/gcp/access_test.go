package gcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/auth"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// token is an access token, or the error of requesting one.
type token struct {
	value string
	err   error
}

func (t token) Token(context.Context) (*auth.Token, error) {
	return &auth.Token{Value: t.value, Type: "Bearer"}, t.err
}

func withToken(cfg gcp.Config, t token) *gcp.Provider {
	cfg.Credentials = auth.NewCredentials(&auth.CredentialsOptions{TokenProvider: t})
	return gcp.New(cfg)
}

func TestCredentials(t *testing.T) {
	for _, tt := range []struct {
		name   string
		set    func(g *testcloud.GCE)
		token  token
		action string
		hint   string
	}{
		{"wrong token", func(g *testcloud.GCE) { g.RequireToken("good") }, token{value: "bad"}, "", "gcloud auth"},
		{"no token", func(*testcloud.GCE) {}, token{err: errors.New("invalid_grant: token expired")}, "", "gcloud auth"},
		{"wrong clock", func(*testcloud.GCE) {}, token{err: errors.New("invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe")}, "", "clock"},
		{"no permission to list", func(g *testcloud.GCE) { g.DenyPermissions("compute.instances.list") }, token{value: "t"}, "compute.instances.list", "Compute Instance Admin"},
		{"no permission to create", func(g *testcloud.GCE) { g.DenyPermissions("compute.instances.create") }, token{value: "t"}, "compute.instances.create", "Compute Instance Admin"},
		{"no permission to act as the service account", func(g *testcloud.GCE) {
			g.FailOperations("compute.instances.insert", testcloud.GCEFailure{Code: "SERVICE_ACCOUNT_ACCESS_DENIED", Message: "The user does not have access to service account 'x'."})
		}, token{value: "t"}, "iam.serviceAccounts.actAs", "Service Account User"},
		{"the API is off", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.aggregatedList", 403, "accessNotConfigured", "Compute Engine API has not been used in project 1 before or it is disabled.")
		}, token{value: "t"}, "the Compute Engine API", "gcloud services enable"},
		{"another API is off", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.aggregatedList", 403, "accessNotConfigured", "Cloud Resource Manager API has not been used in project 1 before or it is disabled. Enable it by visiting https://console.developers.google.com/apis/api/cloudresourcemanager.googleapis.com/overview?project=1 then retry.")
		}, token{value: "t"}, "the Cloud Resource Manager API", "gcloud services enable cloudresourcemanager.googleapis.com"},
		{"no quota project", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.aggregatedList", 403, "forbidden", "Your application is authenticating by using local Application Default Credentials. The compute.googleapis.com API requires a quota project, which is not set by default.")
		}, token{value: "t"}, "the call", "set-quota-project"},
		{"a machine without the scope", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.aggregatedList", 403, "insufficientPermissions", "Request had insufficient authentication scopes.")
		}, token{value: "t"}, "the call", "cloud-platform"},
		{"a policy forbids addresses", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.insert", 412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated for project 1234. Add instance projects/p/zones/us-central1-a/instances/x to the constraint to use external IP with it.")
		}, token{value: "t"}, "constraints/compute.vmExternalIpAccess", "organisation"},
		{"a policy forbids images", func(g *testcloud.GCE) {
			g.FailOperations("compute.instances.insert", testcloud.GCEFailure{Code: "CONDITION_NOT_MET", Message: "Instance 'x' creation failed: Constraint constraints/compute.trustedImageProjects violated for project 1234. Use of images from project deeplearning-platform-release is prohibited."})
		}, token{value: "t"}, "constraints/compute.trustedImageProjects", "organisation"},
		{"unknown service account", func(g *testcloud.GCE) {
			g.FailOperations("compute.instances.insert", testcloud.GCEFailure{Code: "EXTERNAL_RESOURCE_NOT_FOUND", Message: "The resource 'x@p.iam.gserviceaccount.com' of type 'serviceAccount' was not found."})
		}, token{value: "t"}, "attaching service account x@p.iam.gserviceaccount.com", "gcp.balancer_account"},
		{"a permission that an operation lacks", func(g *testcloud.GCE) {
			g.FailOperations("compute.instances.insert", testcloud.GCEFailure{Code: "PERMISSIONS_ERROR", Message: "Required 'compute.images.useReadOnly' permission for 'projects/p/global/images/x'"})
		}, token{value: "t"}, "compute.images.useReadOnly", "Compute Instance Admin"},
		{"no billing", func(g *testcloud.GCE) {
			g.FailCalls("compute.instances.insert", 403, "forbidden", "This API method requires billing to be enabled.")
		}, token{value: "t"}, "use of billed resources", "billing account"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGCE(nil)
			tt.set(g)
			_, err := withToken(config(g), tt.token).Launch(t.Context(), replica("us-central1-0", service.CapacitySpot))
			var denied *provision.CredentialsError
			if !errors.As(err, &denied) || denied.Cloud != "gcp" || denied.Action != tt.action || !strings.Contains(denied.Hint, tt.hint) {
				t.Errorf("got %+v (%v)", denied, err)
			}
			if len(g.Instances()) != 0 {
				t.Errorf("remaining: %+v", g.Instances())
			}
		})
	}
	g := newGCE(nil)
	g.RequireToken("good")
	launched(t, withToken(config(g), token{value: "good"}), replica("us-central1-0", service.CapacitySpot))
}

func TestProjectID(t *testing.T) {
	g := newGCE(nil)
	for _, tt := range []struct{ named, environment, credentials, want string }{
		{"p", "q", "q", ""},
		{"", "p", "q", ""},
		{"", "", "p", ""},
		{"", "", "", "GOOGLE_CLOUD_PROJECT"},
		{"q", "", "", "projects/q"},
	} {
		t.Setenv("GOOGLE_CLOUD_PROJECT", tt.environment)
		cfg := config(g)
		cfg.Project = tt.named
		cfg.Credentials = auth.NewCredentials(&auth.CredentialsOptions{
			TokenProvider:     token{value: "t"},
			ProjectIDProvider: auth.CredentialsPropertyFunc(func(context.Context) (string, error) { return tt.credentials, nil }),
		})
		p := gcp.New(cfg)
		_, err := p.List(t.Context(), "chat")
		if project, _ := p.Project(t.Context()); tt.want == "" && project != "p" {
			t.Errorf("%+v: the project is %q, want p", tt, project)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if denied := (*provision.CredentialsError)(nil); errors.As(err, &denied) {
			got += denied.Hint
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: got %q", tt, got)
		}
	}
}

func TestOfferings(t *testing.T) {
	g := newGCE(nil)
	g.RemoveMachineType("us-east4-c", "g2-standard-4")
	all, err := provider(g).Offerings(t.Context(), "gcp/us-east4")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range all {
		if strings.HasSuffix(o.Type, "-4") || strings.HasPrefix(o.Type, "a3-highgpu-1") || strings.HasPrefix(o.Type, "e2") {
			got = append(got, o.String())
		}
	}
	want := "spot a3-highgpu-1g in us-east4-a\nflex_start a3-highgpu-1g in us-east4-a\non_demand e2-standard-2 in us-east4-a\nspot e2-standard-2 in us-east4-a\n" +
		"on_demand g2-standard-4 in us-east4-a\nspot g2-standard-4 in us-east4-a\nflex_start g2-standard-4 in us-east4-a\n" +
		"spot a3-highgpu-1g in us-east4-c\nflex_start a3-highgpu-1g in us-east4-c\non_demand e2-standard-2 in us-east4-c\nspot e2-standard-2 in us-east4-c"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if l4 := all.WithGPU("L4", 1)[1]; l4.PricePerHour != 0.2818 || l4.VCPUs != 4 {
		t.Errorf("got %+v", l4)
	}
	var spec *provision.SpecError
	if _, err := provider(g).Offerings(t.Context(), "gcp/mars-1"); !errors.As(err, &spec) || !strings.Contains(err.Error(), `"mars-1"`) {
		t.Errorf("got %v", err)
	}
}

func TestQuotas(t *testing.T) {
	g := newGCE(nil)
	g.SetQuota("us-central1", "NVIDIA_L4_GPUS", 4)
	g.SetQuota("", "GPUS_ALL_REGIONS", 2)
	w := replica("us-central1-0", service.CapacityOnDemand)
	launched(t, provider(g), w)
	quotas, err := provider(g).Quotas(t.Context(), here)
	if err != nil || len(quotas) != 14 {
		t.Fatalf("got %+v, %v", quotas, err)
	}
	for i, want := range map[int]provision.Quota{
		0:  {Region: here, Name: "L4 on demand", Code: "NVIDIA_L4_GPUS", Unit: "gpus", Limit: 4, Used: 1},
		1:  {Region: here, Name: "L4 spot", Code: "PREEMPTIBLE_NVIDIA_L4_GPUS", Unit: "gpus", Limit: 100000},
		2:  {Region: here, Name: "A100 on demand", Code: "NVIDIA_A100_GPUS", Unit: "gpus", Limit: 100000},
		7:  {Region: here, Name: "disks", Code: "SSD_TOTAL_GB", Unit: "gb", Limit: 100000, Used: 100},
		9:  {Region: here, Name: "local SSDs", Code: "LOCAL_SSD_TOTAL_GB", Unit: "gb", Limit: 100000},
		11: {Region: here, Name: "public addresses", Code: "IN_USE_ADDRESSES", Unit: "addresses", Limit: 100000, Used: 1},
		12: {Region: "gcp/", Name: "vCPUs of all regions together", Code: "CPUS_ALL_REGIONS", Unit: "vcpus", Limit: 100000, Used: 4},
		13: {Region: "gcp/", Name: "GPUs of all regions together", Code: "GPUS_ALL_REGIONS", Unit: "gpus", Limit: 2, Used: 1},
	} {
		if quotas[i] != want {
			t.Errorf("got %+v, want %+v", quotas[i], want)
		}
	}
	// without a quota for spot GPUs, they count against the on-demand quota
	g.SetQuota("us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
	launched(t, provider(g), replica("us-central1-1", service.CapacitySpot))
	quotas, err = provider(g).Quotas(t.Context(), here)
	if want := (provision.Quota{Region: here, Name: "L4 spot", Code: "PREEMPTIBLE_NVIDIA_L4_GPUS", Unit: "gpus", Limit: 4, Used: 2}); err != nil || quotas[1] != want {
		t.Errorf("got %+v, %v; want %+v", quotas, err, want)
	}
}

func TestDoctor(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(g *testcloud.GCE)
		bad  []string // a part of the message of each failed finding
	}{
		{"valid setup", func(*testcloud.GCE) {}, nil},
		{"no permission", func(g *testcloud.GCE) { g.DenyPermissions("compute.instances.create", "compute.firewalls.delete") }, []string{"compute.firewalls.delete, compute.instances.create"}},
		{"wrong clock", func(g *testcloud.GCE) { g.Now = func() time.Time { return time.Now().Add(-10 * time.Minute) } }, []string{"clock: 10m"}},
		{"no network", func(g *testcloud.GCE) { g.SetNetworks("other") }, []string{"network not found: default"}},
		{"without the project's default service account", func(g *testcloud.GCE) { g.SetDefaultServiceAccount("") }, nil},
		{"service account without a role", func(g *testcloud.GCE) { g.CreateServiceAccount(accountOfBalancers) }, []string{"has no permission for compute.disks.create"}},
		{"role with too few permissions", func(g *testcloud.GCE) { g.SetRole(roleOfBalancers, permissionsOfRole(t)[1:]...) }, []string{"has no permission for compute.disks.create in"}},
		{"role with too many permissions", func(g *testcloud.GCE) { g.BindRole(accountOfBalancers, "roles/editor", "") }, []string{"has more permissions than required, such as compute.acceleratorTypes.get"}},
		{"role without a condition", func(g *testcloud.GCE) { g.CreateServiceAccount(accountOfBalancers, roleOfBalancers) }, []string{"has no condition"}},
		{"no permission to act as the service account", func(g *testcloud.GCE) { g.DenyPermissions("iam.serviceAccounts.actAs") }, []string{"no permission to attach it to machines"}},
		{"no permission to read roles", func(g *testcloud.GCE) { g.DenyPermissions("resourcemanager.projects.getIamPolicy") }, nil},
		{"no image", func(g *testcloud.GCE) {
			g.FailCalls("compute.images.getFromFamily", 404, "notFound", "The resource was not found")
		}, []string{"ubuntu-2204-lts", "common-cu129"}},
		{"permissions API denied", func(g *testcloud.GCE) {
			g.FailCalls("resourcemanager.projects.testIamPermissions", 403, "forbidden", "Cloud Resource Manager API is disabled")
		}, []string{"testing the permissions"}},
		{"rejected token", func(g *testcloud.GCE) { g.RequireToken("good") }, []string{"no valid credentials"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGCE(nil)
			tt.set(g)
			cfg := config(g)
			cfg.Regions = []string{"us-central1", "europe-west4"}
			var bad []provision.CheckResult
			for _, f := range gcp.New(cfg).Doctor(t.Context()) {
				if !f.OK {
					bad = append(bad, f)
				}
			}
			if len(bad) != len(tt.bad) {
				t.Fatalf("got %+v, want %q", bad, tt.bad)
			}
			for i, f := range bad {
				if !strings.Contains(f.Message, tt.bad[i]) || f.Where != "gcp" {
					t.Errorf("got %+v, want %q", f, tt.bad[i])
				}
			}
			if left := state(g); left != "" {
				t.Errorf("created:\n%s", left)
			}
		})
	}
	g := newGCE(nil)
	g.SetSubnets("prod", "us-central1", "west")
	cfg := config(g)
	cfg.Regions, cfg.Network, cfg.Subnets = []string{"us-central1", "us-east4"}, "prod", map[string]string{"us-central1": "west"}
	var where []string
	for _, f := range gcp.New(cfg).Doctor(t.Context()) {
		if !f.OK {
			where = append(where, f.Where+": "+f.Message)
		}
	}
	if want := "gcp/us-east4: network prod has no subnet prod in this region"; strings.Join(where, "\n") != want {
		t.Errorf("got %q, want %q", where, want)
	}
	cfg.Network, cfg.Subnets = "", nil
	cfg.Regions = []string{"mars-1"}
	all := gcp.New(cfg).Doctor(t.Context())
	if last := all[len(all)-1]; last.OK || last.Where != "gcp/mars-1" {
		t.Errorf("got %+v", last)
	}
}

// A region with one zone has one zone.
func TestDoctorCountsOneZone(t *testing.T) {
	g := newGCE(nil)
	cfg := config(g)
	cfg.Regions = []string{"us-central1"}
	cfg.Transport = testcloud.HandlerTransport{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/regions/us-central1") {
			g.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		g.ServeHTTP(answer, r)
		var region map[string]any
		if err := json.Unmarshal(answer.Body.Bytes(), &region); err != nil {
			t.Error(err)
		}
		region["zones"] = region["zones"].([]any)[:1]
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(region); err != nil {
			t.Error(err)
		}
	})}
	found := gcp.New(cfg).Doctor(t.Context())
	if !slices.ContainsFunc(found, func(f provision.CheckResult) bool { return f.Message == "region exists with 1 zone" }) {
		t.Errorf("got %+v", found)
	}
}
