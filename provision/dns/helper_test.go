package dns

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// inProcess sends requests to a handler without a socket, so that a test can use fake time. A handler that
// drops its connection is an error.
type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (res *http.Response, err error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer func() {
		if cut := recover(); cut == http.ErrAbortHandler {
			res, err = nil, io.ErrUnexpectedEOF
		} else if cut != nil {
			panic(cut)
		}
	}()
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// account is an AWS account with the public hosted zone example.com.
type account struct {
	faults *testcloud.Faults
	fake   *testcloud.Route53
	zone   string
	poll   time.Duration
}

// setAccount sets credentials for this test, and hides the user's AWS files.
func setAccount(t *testing.T) {
	for key, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CA_BUNDLE": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_ROUTE_53": "",
	} {
		t.Setenv(key, value)
	}
}

func newAccount() *account {
	faults := &testcloud.Faults{}
	a := &account{faults: faults, fake: testcloud.NewRoute53(faults), poll: time.Second}
	a.zone = a.fake.AddZone("example.com", false)
	return a
}

// client returns a client of the account, like another process.
func (a *account) client(t fataler) *Route53 {
	z, err := NewRoute53(t.Context(), Config{Endpoint: "http://route53.test", Transport: inProcess{a.fake.Handler()}, Poll: a.poll})
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// end describes the resources of an account, one per line, without the parts that differ between equal
// results.
func (a *account) end() []string {
	var lines []string
	ids := map[string]string{}
	checks, tags := a.fake.HealthChecks()
	for i, c := range checks {
		ids[c.ID] = tags[i]["skyserve:id"]
		line := c.HealthCheckConfig.IPAddress + c.HealthCheckConfig.ResourcePath + " " + c.HealthCheckConfig.Type
		for _, k := range []string{"Name", "skyserve:service", "skyserve:owner", "skyserve:id", "skyserve:dns"} {
			line += " " + tags[i][k]
		}
		lines = append(lines, line)
	}
	for _, s := range a.fake.RecordSets(a.zone) {
		line := strings.Join([]string{s.Name, s.Type, s.SetIdentifier, s.Region, "check of " + ids[s.HealthCheckID]}, " ")
		if s.GeoProximityLocation != nil {
			line += " near " + s.GeoProximityLocation.AWSRegion
		}
		if s.ResourceRecords != nil {
			for _, v := range s.ResourceRecords.ResourceRecord {
				line += " " + v.Value
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// record is the record of a balancer at a public address.
func record(id, region, addr string) provision.DNSRecord {
	r := provision.DNSRecord{ID: id, Address: netip.MustParseAddr(addr)}
	r.Region = regionOf(region)
	r.Check = "http://" + netip.AddrPortFrom(r.Address, 8000).String() + "/readyz"
	return r
}

// chat is a name with records.
func chat(records ...provision.DNSRecord) provision.PublicName {
	return provision.PublicName{
		Name: "chat.example.com", Zone: "example.com", Service: "chat", Owner: "ab12",
		Routing: provision.RoutingLatency, TTL: 30 * time.Second, Records: records,
	}
}

// world is a name with two balancers in one region, one in another cloud with the same nearest AWS region,
// and one far away.
func world() provision.PublicName {
	return chat(
		record("lb-us-0", "aws/us-east-1", "198.51.100.1"), record("lb-us-1", "aws/us-east-1", "198.51.100.2"),
		record("lb-us-east4-0", "gcp/us-east4", "198.51.100.3"), record("lb-eu-0", "gcp/europe-west9", "203.0.113.1"),
	)
}
