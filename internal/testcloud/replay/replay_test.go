package replay_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/replay"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/record"
)

var (
	recordings = flag.String("replay", "", "directory of recordings of real clouds, to compare the emulated clouds with")
	update     = flag.Bool("update", false, "write the sample recording of testdata again")
)

const sample = "testdata/emulated-aws.jsonl"

// scenario creates and removes objects of a small service.
func scenario(t *testing.T, over http.RoundTripper) error {
	t.Helper()
	p, err := aws.New(t.Context(), aws.Config{
		Regions: []string{"us-east-1"}, Transport: over, Poll: -1, Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""),
	})
	if err != nil {
		return err
	}
	firewall := provision.Desired{
		ID: "firewall-us-east-1-balancer", Kind: provision.KindFirewall, Service: "chat", Owner: "me", Region: "aws/us-east-1", SpecHash: "f1",
		Labels: map[string]string{"role": "balancer"}, Rules: []provision.FirewallRule{{Port: 8000, From: provision.FromWorld}},
	}
	identity := provision.Desired{
		ID: "identity-aws-balancer", Kind: provision.KindIdentity, Service: "chat", Owner: "me", Region: "aws/global", SpecHash: "i1",
		Labels: map[string]string{"role": "balancer"}, Grants: []provision.Grant{provision.GrantOperate},
	}
	for _, w := range []provision.Desired{firewall, identity} {
		if _, err := p.Launch(context.WithoutCancel(t.Context()), w); err != nil {
			return err
		}
	}
	objects, err := p.List(t.Context(), "chat")
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := p.Terminate(t.Context(), o); err != nil {
			return err
		}
	}
	if _, err := p.Offerings(t.Context(), service.Region("aws/us-east-1")); err != nil {
		return err
	}
	if _, err = p.List(t.Context(), "chat"); err != nil {
		return err
	}
	return buyBlock(t, p)
}

// buyBlock searches, buys and reads a capacity block.
func buyBlock(t *testing.T, p *aws.Provider) error {
	const region = service.Region("aws/us-east-1")
	q := provision.BlockQuery{Type: "p5.48xlarge", Count: 1, Days: 1, From: blockStarts, To: blockStarts.Add(24 * time.Hour)}
	found, err := p.BlockOfferings(t.Context(), region, q)
	if err != nil || len(found) != 1 {
		return fmt.Errorf("found %v: %w", found, err)
	}
	v, _, err := p.BuyBlock(context.WithoutCancel(t.Context()), region, found[0].ID)
	if err != nil {
		return err
	}
	_, err = p.Reservations(t.Context(), region, []string{v.ID})
	return err
}

// blockStarts is the start of the block on sale.
var blockStarts = time.Date(2100, 1, 2, 11, 30, 0, 0, time.UTC)

func emulator() http.RoundTripper {
	cloud := testcloud.NewAWS(nil, "us-east-1")
	cloud.PutBlockOffering("us-east-1", testcloud.BlockOffering{
		ID: "cb-0123456789abcdef0", Zone: "us-east-1a", Type: "p5.48xlarge", Count: 1, Starts: blockStarts, Ends: blockStarts.Add(24 * time.Hour), Fee: "755.14",
	})
	return testcloud.HandlerTransport{Handler: cloud}
}

// recordScenario records the scenario against the emulated cloud.
func recordScenario(t *testing.T) string {
	t.Helper()
	r, err := record.Open(filepath.Join(t.TempDir(), "calls"), "skyserve up", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := scenario(t, r.Transport(emulator())); err != nil {
		t.Fatal(err)
	}
	return r.Path()
}

func read(t *testing.T, path string) record.Recording {
	t.Helper()
	r, err := record.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Calls) == 0 {
		t.Fatalf("%s has no calls", path)
	}
	return r
}

func TestSampleIsWritten(t *testing.T) {
	if !*update {
		t.Skip("run with -update to write the sample again")
	}
	text, err := os.ReadFile(recordScenario(t))
	if err == nil {
		err = os.WriteFile(sample, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The recorded responses answer the calls of a provider: it does the same as when they were recorded.
func TestProviderRunsOnRecording(t *testing.T) {
	over := replay.NewTransport(read(t, sample).Calls)
	if err := scenario(t, over); err != nil {
		t.Fatal(err)
	}
	if misses, unused := over.Misses(), over.Unused(); len(misses)+len(unused) > 0 {
		t.Errorf("requests that were not recorded: %v; calls without a request: %v", misses, unused)
	}
}

func TestMissingCallIsNamedWithDifference(t *testing.T) {
	over := replay.NewTransport(read(t, sample).Calls)
	request, _ := http.NewRequest("POST", "https://ec2.us-east-1.amazonaws.com/", strings.NewReader("Action=DescribeVpcs&Version=2016-11-15&Filter.1.Name=other"))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	_, err := over.RoundTrip(request)
	if err == nil || !strings.Contains(err.Error(), "+ Filter.1.Name: other") {
		t.Errorf("the error is %v, want one that names the field", err)
	}
}

func TestEmulatorEqualsItsRecording(t *testing.T) {
	differences, err := replay.Compare(read(t, sample).Calls, emulator())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
}

// Compare finds what a real cloud returns and the emulated one does not.
func TestCompareFindsDifferences(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string][2]string{
		"vpcSet[].dhcpOptionsId: recorded present (text), emulated absent": {"<vpcId>", "<dhcpOptionsId>dopt-0a1b2c3d</dhcpOptionsId><vpcId>"},
		"vpcSet[].isDefault: recorded absent, emulated present (text)":     {"<isDefault>true</isDefault>", ""},
		"status: recorded 503, emulated 200":                               {`"response":{"status":200`, `"response":{"status":503`},
	} {
		if !bytes.Contains(text, []byte(change[0])) {
			t.Fatalf("the sample lacks %q", change[0])
		}
		path := filepath.Join(t.TempDir(), "changed.jsonl")
		if err := os.WriteFile(path, bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		differences, err := replay.Compare(read(t, path).Calls, emulator())
		if err != nil || len(differences) != 1 || !strings.HasSuffix(differences[0].String(), want) {
			t.Errorf("%s: differences %v (%v), want one", want, differences, err)
		}
	}
}

// TestEmulatorsEqualRecordings compares the emulated clouds with recordings of real ones:
//
//	go test ./internal/testcloud/replay -run EqualRecordings -replay DIR
func TestEmulatorsEqualRecordings(t *testing.T) {
	if *recordings == "" {
		t.Skip("no recordings: pass -replay DIR")
	}
	files, err := record.ReadDir(*recordings)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := replay.Sequence(files)
	if err != nil {
		t.Fatal(err)
	}
	differences, err := replay.Compare(calls, emulators(calls))
	if err != nil {
		t.Error(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
}

var (
	regionsIn  = regexp.MustCompile(`\b(?:us|eu|ap|ca|sa|me|af|il|mx)-[a-z]+-\d\b`)
	accountsIn = regexp.MustCompile(`\b(skyserve-[a-z0-9-]+)@project-\d{5}\.iam`)
)

// emulators returns a transport to the emulated cloud of each request, with the regions, the project and the hosted
// zones that the calls name.
func emulators(calls []record.Call) http.RoundTripper {
	const project = "project-00001" // see Sequence
	regions := map[string]bool{"us-east-1": true}
	zones := map[string]bool{}
	for _, c := range calls {
		for _, region := range regionsIn.FindAllString(c.Request.URL+" "+c.Request.Content(), -1) {
			regions[region] = true
		}
		if u, err := url.Parse(c.Request.URL); err == nil && u.Query().Get("dnsname") != "" {
			zones[strings.TrimSuffix(u.Query().Get("dnsname"), ".")] = true
		}
	}
	amazon, google := testcloud.NewAWS(nil, slices.Sorted(maps.Keys(regions))...), testcloud.NewGCE(project, nil)
	for _, c := range calls {
		for _, m := range accountsIn.FindAllStringSubmatch(c.Request.URL+" "+c.Request.Content(), -1) {
			if err := google.RunGcloud("gcloud iam service-accounts create " + m[1] + " --project " + project); err != nil {
				panic(err)
			}
		}
	}
	var booted []string // machines that publish their fingerprint before the next call
	google.BootMachine = func(m testcloud.BootingMachine) func() {
		booted = append(booted, m.ID)
		return func() {}
	}
	dns := testcloud.NewRoute53(&testcloud.Faults{})
	for zone := range zones {
		dns.AddZone(zone, false)
	}
	return testcloud.HandlerTransport{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/2013-04-01/"):
			dns.Handler().ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/compute/"), strings.HasPrefix(r.URL.Path, "/v1/"), strings.HasPrefix(r.URL.Path, "/v3/"):
			for _, name := range booted {
				google.SetGuestAttribute(name, agent.GuestAttributePath, "fingerprint")
			}
			booted = nil
			google.ServeHTTP(w, r)
		default:
			amazon.ServeHTTP(w, r)
		}
	})}
}
