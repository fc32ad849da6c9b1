package main

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
)

// rehearsable is a service with all settings that a rehearsal takes over or leaves out.
const rehearsable = `
name: a-service-with-a-name-of-forty-character
models:
  - name: m
    engine: {kind: vllm}
    gpus: [{type: H100, count: 8}]
    secrets: {HF_TOKEN: env:HF}
regions:
  - {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [subnet-0a1b2c3d], access: ssm, replicas: {min: 4, max: 8}, capacity: [spot]}
  - {name: aws/eu-west-1, balancers: 3}
  - {name: gcp/us-central1}
balancer: {auth: {keys_from: env:KEYS}, tls: {cert: c, key: k}}
dns: {provider: route53, name: chat.example.com, zone: example.com}
gcp: {balancer_account: lb@p.iam.gserviceaccount.com}
`

// A rehearsal uses the networks, access and zone of the service, small machines, a name that fits, and
// neither its secrets nor its accounts.
func TestRehearsalIsDerivedFromService(t *testing.T) {
	spec, err := service.Parse("service.yaml", []byte(rehearsable))
	if err != nil {
		t.Fatal(err)
	}
	for all, want := range map[bool]int{false: 2, true: 3} {
		got, text, err := rehearsalSpec(spec, rehearsalRegions(spec, all), true, &service.TLS{Cert: "/t/c", Key: "/t/k"})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Name) > 40 || !strings.HasSuffix(got.Name, "-rehearsal") || got.DNS.Name != got.Name+".example.com" {
			t.Errorf("name %q, DNS name %q", got.Name, got.DNS.Name)
		}
		if len(got.Regions) != want || got.Regions[0].Network != "vpc-0a1b2c3d" || got.Regions[0].Access != service.AccessSSM || got.Regions[0].Replicas != (service.Bounds{Min: 1, Max: 1}) {
			t.Errorf("regions %+v, want %d", got.Regions, want)
		}
		for _, r := range got.Regions {
			if r.Balancers != 1 || len(r.Capacity) != 1 || r.Capacity[0] != service.CapacityOnDemand {
				t.Errorf("%+v", r)
			}
		}
		if m := got.Models; len(m) != 1 || m[0].Engine.Kind != service.EngineSim || len(m[0].GPUs) > 0 {
			t.Errorf("models %+v", m)
		}
		if got.Balancer.TLS.Cert != "/t/c" || got.Balancer.Insecure || got.GCP != (service.GCPSpec{}) || strings.Contains(string(text), "HF") {
			t.Errorf("got\n%s", text)
		}
	}
}

// Two services never share a rehearsal, and each name is one of a service.
func TestRehearsalNamesAreUnique(t *testing.T) {
	long := "a-service-with-a-long-name-"     // 27 letters
	dashed := "its-23rd-letter-is-the-ninth-" // it is cut at a dash
	names := map[string]string{}
	for _, name := range []string{"chat", "c", long + "abc", long + "abcd", long + "abcde", long + "1", long + "1-eu", long + "1-us", dashed + "eu", dashed + "us"} {
		got := rehearsalName(name)
		if other, taken := names[got]; taken {
			t.Errorf("%s and %s share the rehearsal %s", name, other, got)
		}
		names[got] = name
		if len(got) > maxServiceName || strings.Contains(got, "--") || !strings.HasSuffix(got, "-rehearsal") {
			t.Errorf("%s has the rehearsal %s", name, got)
		}
		if len(name) <= 30 && got != name+"-rehearsal" {
			t.Errorf("%s is shortened to %s", name, got)
		}
	}
}

// Invalid combinations of flags and services that cannot be rehearsed are usage errors.
func TestRehearsalRejectsInvalidUse(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SKYSERVE_HOME", filepath.Join(dir, "home"))
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	local := file("local.yaml", "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n")
	cloud := file("cloud.yaml", oneRegion)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{cloud, "--dns"}, "--dns requires --rehearse"},
		{[]string{cloud, "--timeout", "1m"}, "--timeout requires --rehearse"},
		{[]string{cloud, "--rehearse", "--timeout", "-1m"}, "--timeout: must be greater than 0, got -1m"},
		{[]string{cloud, "--rehearse", "--regions", "two"}, `--regions: must be one of first, all, got "two"`},
		{[]string{cloud, "--rehearse", "--dns", "--yes"}, "--dns: chat has no name in Route 53"},
		{[]string{cloud, "--rehearse"}, "confirmation is required: --rehearse rents machines"},
		{[]string{local, "--rehearse", "--yes"}, "--rehearse: chat has no region of a cloud"},
	} {
		var out, errOut strings.Builder
		code := execute(t.Context(), append([]string{"doctor"}, tt.args...), &out, &errOut)
		if code != exitUsage || !strings.Contains(errOut.String(), tt.want) {
			t.Errorf("doctor %q: exit %d\n%s", tt.args[1:], code, errOut.String())
		}
	}
}

// A report contains no account ids, projects, addresses, account names or secrets.
func TestReportIsSanitized(t *testing.T) {
	r := &rehearsal{key: "KEYOFTHEREHEARSAL", dir: "/tmp/skyserve-rehearsal-1", o: &doctorOptions{clouds: cloudFlags{project: "my-project"}}}
	for text, want := range map[string]string{
		"User: arn:aws:iam::123456789012:user/jo is not authorized":                   "User: arn:aws:iam::[account]:user/jo is not authorized",
		"Credential=AKIAIOSFODNN7EXAMPLE/20261001":                                    "Credential=[access key]/20261001",
		"GET https://b.s3.amazonaws.com/x?X-Amz-Signature=abc&y=1: 403":               "GET https://b.s3.amazonaws.com/x 403",
		"projects/other-1234/zones/us-central1-a/instances/m":                         "projects/[project]/zones/us-central1-a/instances/m",
		"Permission denied on project my-project":                                     "Permission denied on project [project]",
		"serviceAccount lb@my-project.iam.gserviceaccount.com":                        "serviceAccount [email]",
		"dial tcp 203.0.113.7:8441: connection refused":                               "dial tcp [address]:8441: connection refused",
		"dial tcp [2001:db8::1]:8441: i/o timeout":                                    "dial tcp [address]:8441: i/o timeout",
		"Authorization: Bearer KEYOFTHEREHEARSAL":                                     "Authorization: Bearer [secret]",
		"waiting for lb-us-east-1-0: not ready within 30m0s, skyserve 1.2.3 of Linux": "waiting for lb-us-east-1-0: not ready within 30m0s, skyserve 1.2.3 of Linux",
	} {
		if got := r.sanitize(text); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// The client of a rehearsal accepts the rehearsal's certificate and no other.
func TestRehearsalClientPinsCertificate(t *testing.T) {
	serve := func() (base string, der []byte) {
		files, der, err := throwAwayCertificate(t.TempDir(), "x", time.Now(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL, der
	}
	base, der := serve()
	other, _ := serve()
	r := &rehearsal{cert: der}
	if status, _, _, err := r.send(t.Context(), base, "k"); err != nil || status != http.StatusTeapot {
		t.Errorf("own certificate: %d, %v", status, err)
	}
	if _, _, _, err := r.send(t.Context(), other, "k"); err == nil || !strings.Contains(err.Error(), "another certificate") {
		t.Errorf("another certificate: %v", err)
	}
}
