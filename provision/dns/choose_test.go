package dns

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
)

// fleet is two balancers in us and one each in eu and asia. Marks: - is unhealthy, x is withdrawn.
func fleet(marks string) []Candidate {
	var all []Candidate
	for i, region := range []service.Region{"local/us", "local/us", "local/eu", "local/asia"} {
		c := Candidate{DNSRecord: provision.DNSRecord{ID: string(rune('a' + i)), Region: region}, Healthy: true}
		if i < len(marks) {
			c.Healthy, c.Withdrawn = marks[i] != '-', marks[i] == 'x'
		}
		all = append(all, c)
	}
	return all
}

func idsOf(cs []Candidate) string {
	var ids []string
	for _, c := range cs {
		ids = append(ids, c.ID)
	}
	return strings.Join(ids, "")
}

func TestChoose(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	stated := map[string]time.Duration{"us-eu": ms(100), "asia-us": ms(160), "eu-asia": ms(120)}
	in := func(region string) ClientLocation { return ClientLocation{Region: service.Region(region)} }
	for _, tt := range []struct {
		name    string
		marks   string
		routing provision.DNSRouting
		rtt     map[string]time.Duration
		from    ClientLocation
		want    string
	}{
		{"its own region", "", provision.RoutingLatency, stated, in("local/eu"), "c"},
		{"all balancers of the region", "", provision.RoutingLatency, stated, in("local/us"), "ab"},
		{"unhealthy record is excluded", "-", provision.RoutingLatency, stated, in("local/us"), "b"},
		{"withdrawn record is excluded", " x", provision.RoutingLatency, stated, in("local/us"), "a"},
		{"unhealthy region: nearest other region", "--", provision.RoutingLatency, stated, in("local/us"), "c"},
		{"two unhealthy regions: the third", "---", provision.RoutingLatency, stated, in("local/us"), "d"},
		{"all unhealthy: all returned", "----", provision.RoutingLatency, stated, in("local/eu"), "c"},
		{"all unhealthy or withdrawn", "--x-", provision.RoutingLatency, stated, in("local/eu"), "ab"},
		{"all withdrawn", "xxxx", provision.RoutingLatency, stated, in("local/eu"), ""},
		{"configured round trips first", "", provision.RoutingLatency, stated, ClientLocation{Region: "local/us", RTT: map[service.Region]time.Duration{"local/us": ms(50), "local/asia": ms(20)}}, "d"},
		{"configured and estimated round trips", "", provision.RoutingLatency, nil, ClientLocation{Region: "local/us", RTT: map[service.Region]time.Duration{"local/us": ms(500)}}, "c"},
		{"estimate by distance", "--", provision.RoutingLatency, nil, in("local/us"), "c"},
		{"geo routing ignores round trips", "--", provision.RoutingGeo, map[string]time.Duration{"us-asia": 0}, in("local/us"), "c"},
		{"unknown client location", "", provision.RoutingLatency, stated, ClientLocation{}, "ab"},
		{"unknown client location, first region unhealthy", "--", provision.RoutingGeo, stated, ClientLocation{}, "c"},
		{"unknown place", "", provision.RoutingGeo, stated, in("static/basement"), "ab"},
	} {
		got := idsOf(Choose(fleet(tt.marks), Distances{tt.routing, tt.rtt}, tt.from))
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// chooseSimply is a reference implementation of Choose, which looks at each record in turn.
func chooseSimply(all []Candidate, d Distances, c ClientLocation) (chosen []Candidate) {
	for _, healthyOnly := range []bool{true, false} {
		for _, r := range all {
			if r.Withdrawn || healthyOnly && !r.Healthy {
				continue
			}
			switch {
			case len(chosen) == 0 || d.distanceTo(c, r.Region) < d.distanceTo(c, chosen[0].Region):
				chosen = []Candidate{r}
			case r.Region == chosen[0].Region:
				chosen = append(chosen, r)
			}
		}
		if len(chosen) > 0 {
			return chosen
		}
	}
	return nil
}

// Choose returns the same as the reference implementation. Withdrawn and unhealthy records do not change the
// result for others.
func TestChooseEqualsSimpleVersion(t *testing.T) {
	regions := []service.Region{"local/us", "local/eu", "local/asia", "static/basement", "static/paris"}
	rapid.Check(t, func(t *rapid.T) {
		var all []Candidate
		for i := range rapid.IntRange(0, 8).Draw(t, "records") {
			all = append(all, Candidate{
				DNSRecord: provision.DNSRecord{ID: string(rune('a' + i)), Region: rapid.SampledFrom(regions).Draw(t, "region"), Withdrawn: rapid.IntRange(0, 3).Draw(t, "withdrawn") == 0},
				Healthy:   rapid.Bool().Draw(t, "healthy"),
			})
		}
		d := Distances{rapid.SampledFrom([]provision.DNSRouting{provision.RoutingLatency, provision.RoutingGeo}).Draw(t, "routing"), map[string]time.Duration{"us-eu": 100 * time.Millisecond}}
		c := ClientLocation{Region: rapid.SampledFrom(append(regions, "")).Draw(t, "client")}
		got := Choose(all, d, c)
		if want := chooseSimply(all, d, c); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		if len(got) == 0 || !got[0].Healthy {
			return
		}
		well := slices.DeleteFunc(slices.Clone(all), func(r Candidate) bool { return !r.Healthy || r.Withdrawn })
		if again := Choose(well, d, c); !reflect.DeepEqual(again, got) {
			t.Fatalf("without what is not given: got %+v, want %+v", again, got)
		}
	})
}

func TestNarrowestNetworkWins(t *testing.T) {
	all, err := networksOf([]service.DNSClient{
		{Network: "10.0.0.0/8", Region: "local/us"},
		{Network: "10.1.0.0/16", Region: "local/eu"},
		{Network: "fd00::/8", Region: "local/asia"},
		{Network: "10.1.2.0/24", Region: "local/asia"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]service.Region{
		"10.9.9.9/32": "local/us", "10.1.9.0/24": "local/eu", "10.1.2.3/32": "local/asia",
		"10.1.0.0/16": "local/eu", "10.0.0.0/7": "", "192.0.2.1/32": "", "fd01::/16": "local/asia", "::/0": "",
	} {
		if got := all.locate(netip.MustParsePrefix(asked)).Region; got != want {
			t.Errorf("%s: got %q, want %q", asked, got, want)
		}
	}
	if _, err := networksOf([]service.DNSClient{{Network: "10.0.0.0"}}); err == nil {
		t.Error("a network without a length was taken")
	}
	if !slices.IsSortedFunc(all, func(a, b network) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) }) {
		t.Error("not sorted")
	}
}
