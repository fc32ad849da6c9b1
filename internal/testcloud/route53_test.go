package testcloud

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// plainSet is a simple record set.
func plainSet(name, kind string, values ...string) RecordSet {
	ttl := int64(60)
	s := RecordSet{Name: name, Type: kind, TTL: &ttl, ResourceRecords: &Values{}}
	for _, v := range values {
		s.ResourceRecords.ResourceRecord = append(s.ResourceRecords.ResourceRecord, Value{v})
	}
	return s
}

func routed(s RecordSet, id string, weight int64, region string) RecordSet {
	s.SetIdentifier, s.Region = id, region
	if region == "" {
		s.Weight = &weight
	}
	return s
}

// The emulation rejects what Route 53 rejects, with the same messages, and changes nothing.
func TestRoute53RejectsInvalidChanges(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first []RecordSet
		then  RecordSet
		want  string // empty = accepted
	}{
		{"the same again", []RecordSet{plainSet("a.example.com", "A", "192.0.2.1")}, plainSet("A.example.com.", "A", "192.0.2.1"), "[Tried to create resource record set [name='a.example.com.', type='A'] but it already exists]"},
		{"another type", []RecordSet{plainSet("a.example.com", "A", "192.0.2.1")}, plainSet("a.example.com", "AAAA", "2001:db8::1"), ""},
		{"another zone", nil, plainSet("a.example.org", "A", "192.0.2.1"), "RRSet with DNS name a.example.org. is not permitted in zone example.com."},
		{"a name with the zone as suffix only", nil, plainSet("anexample.com", "A", "192.0.2.1"), "not permitted in zone"},
		{"beside a CNAME", []RecordSet{plainSet("a.example.com", "CNAME", "b.example.org")}, plainSet("a.example.com", "TXT", `"x"`), "conflicts with other records with the same DNS name"},
		{"a weighted one beside a simple one", []RecordSet{plainSet("a.example.com", "A", "192.0.2.1")}, routed(plainSet("a.example.com", "A", "192.0.2.2"), "w", 1, ""), "cannot be created as a simple set exists"},
		{"two weighted ones", []RecordSet{routed(plainSet("a.example.com", "A", "192.0.2.1"), "v", 1, "")}, routed(plainSet("a.example.com", "A", "192.0.2.1"), "w", 1, ""), ""},
		{"by latency beside by weight", []RecordSet{routed(plainSet("a.example.com", "A", "192.0.2.1"), "v", 1, "")}, routed(plainSet("a.example.com", "A", "192.0.2.1"), "w", 0, "us-east-1"), "a weighted set exists"},
		{"two of one region", []RecordSet{routed(plainSet("a.example.com", "A", "192.0.2.1"), "v", 0, "us-east-1")}, routed(plainSet("a.example.com", "A", "192.0.2.2"), "w", 0, "us-east-1"), "a set of the same region exists"},
		{"two values by latency", nil, routed(plainSet("a.example.com", "A", "192.0.2.1", "192.0.2.2"), "v", 0, "us-east-1"), "has one value"},
		{"no IPv4 address in A", nil, plainSet("a.example.com", "A", "2001:db8::1"), "ARRDATAIllegalAddress encountered with '2001:db8::1'"},
		{"no IPv4 address in AAAA", nil, plainSet("a.example.com", "AAAA", "192.0.2.1"), "AAAARRDATAIllegalAddress"},
		{"text without quotes", nil, plainSet("a.example.com", "TXT", "x"), "enclosed in quotation marks"},
		{"no values", nil, RecordSet{Name: "a.example.com", Type: "A"}, "Expected exactly one of"},
		{"an alias of nothing", nil, RecordSet{Name: "a.example.com", Type: "A", AliasTarget: &AliasTarget{"Z000000000001", "b.example.com", false}}, "Tried to create an alias that targets b.example.com., type A in zone Z000000000001, but that target was not found"},
		{"an unknown health check", nil, RecordSet{Name: "a.example.com", Type: "A", HealthCheckID: "x"}, "NoSuchHealthCheck"},
	} {
		r := NewRoute53(&Faults{})
		zone := r.AddZone("example.com", false)
		if err := r.AddRecords(zone, tt.first...); len(tt.first) > 0 && err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		err := r.AddRecords(zone, plainSet("other.example.com", "A", "192.0.2.9"), tt.then)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
		if err != nil && len(r.RecordSets(zone)) != len(tt.first) {
			t.Errorf("%s: after a rejected batch, the zone has %+v", tt.name, r.RecordSets(zone))
		}
	}
}

// A caller reference is valid for one configuration and one health check.
func TestRoute53CallerReferences(t *testing.T) {
	r := NewRoute53(&Faults{})
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	create := func(ref string, port int) (status int, id string) {
		body := fmt.Sprintf(`<CreateHealthCheckRequest><CallerReference>%s</CallerReference><HealthCheckConfig><IPAddress>192.0.2.1</IPAddress><Port>%d</Port>`+
			`<Type>HTTP</Type><RequestInterval>10</RequestInterval><FailureThreshold>3</FailureThreshold></HealthCheckConfig></CreateHealthCheckRequest>`, ref, port)
		res, err := http.Post(server.URL+"/2013-04-01/healthcheck", "text/xml", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var made struct {
			ID string `xml:"HealthCheck>Id"`
		}
		if err := xml.NewDecoder(res.Body).Decode(&made); err != nil {
			t.Fatal(err)
		}
		if at := res.Header.Get("Location"); res.StatusCode == http.StatusCreated && !strings.HasSuffix(at, "/2013-04-01/healthcheck/"+made.ID) {
			t.Errorf("created %s at %q", made.ID, at)
		}
		return res.StatusCode, made.ID
	}
	status, id := create("a", 80)
	if status != http.StatusCreated || id == "" {
		t.Fatalf("got %d, %q", status, id)
	}
	if status, again := create("a", 80); status != http.StatusCreated || again != id {
		t.Errorf("same request again: got %d, %q", status, again)
	}
	if status, _ := create("a", 81); status != http.StatusConflict {
		t.Errorf("another configuration: got %d", status)
	}
	req, err := http.NewRequest(http.MethodDelete, server.URL+"/2013-04-01/healthcheck/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("deleting: %v, %v", res, err)
	}
	if status, _ := create("a", 80); status != http.StatusConflict {
		t.Errorf("after deletion: got %d", status)
	}
	if status, other := create("b", 80); status != http.StatusCreated || other == id {
		t.Errorf("another reference: got %d, %q", status, other)
	}
}
