package testcloud

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// RecordSet is one resource record set of a hosted zone, in its wire format.
type RecordSet struct {
	Name                 string
	Type                 string
	SetIdentifier        string        `xml:",omitempty"`
	Weight               *int64        `xml:",omitempty"`
	Region               string        `xml:",omitempty"`
	GeoProximityLocation *GeoProximity `xml:",omitempty"`
	TTL                  *int64        `xml:",omitempty"`
	ResourceRecords      *Values       `xml:",omitempty"`
	AliasTarget          *AliasTarget  `xml:",omitempty"`
	HealthCheckID        string        `xml:"HealthCheckId,omitempty"`
}

// Values are the values of a record set.
type Values struct {
	ResourceRecord []Value
}

// Value is one value of a record set.
type Value struct{ Value string }

// GeoProximity is the location of a record set with geoproximity routing.
type GeoProximity struct {
	AWSRegion string `xml:",omitempty"`
}

// AliasTarget is the record set that an alias refers to.
type AliasTarget struct {
	HostedZoneID         string `xml:"HostedZoneId"`
	DNSName              string
	EvaluateTargetHealth bool
}

// key returns the unique sort key of a record set.
func (s RecordSet) key() [3]string { return [3]string{reverseLabels(s.Name), s.Type, s.SetIdentifier} }

// policy returns the routing policy of a record set.
func (s RecordSet) policy() string {
	switch {
	case s.Region != "":
		return "latency"
	case s.GeoProximityLocation != nil:
		return "geoproximity"
	case s.Weight != nil:
		return "weighted"
	case s.SetIdentifier != "":
		return "multivalue"
	}
	return "simple"
}

// routingRegion returns the region of a record set with latency or geoproximity routing.
func (s RecordSet) routingRegion() string {
	if s.GeoProximityLocation != nil {
		return s.GeoProximityLocation.AWSRegion
	}
	return s.Region
}

// values returns the values of a record set.
func (s RecordSet) values() []Value {
	if s.ResourceRecords == nil {
		return nil
	}
	return s.ResourceRecords.ResourceRecord
}

// hostedZone is a zone with its record sets, in the order of lists.
type hostedZone struct {
	id      string
	name    string // with its final dot
	private bool
	sets    []RecordSet
}

// AddZone creates a hosted zone and returns its id.
func (r *Route53) AddZone(name string, private bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	z := &hostedZone{id: r.nextID("Z"), name: fullyQualified(name), private: private}
	ttl := int64(172800)
	z.sets = []RecordSet{{Name: z.name, Type: "NS", TTL: &ttl, ResourceRecords: &Values{[]Value{{"ns-1.awsdns-00.com."}}}}}
	r.zones = append(r.zones, z)
	slices.SortStableFunc(r.zones, func(a, b *hostedZone) int { return cmp.Compare(reverseLabels(a.name), reverseLabels(b.name)) })
	return z.id
}

// AddRecords adds record sets to a hosted zone, like a user in the console. Record sets that Route 53 rejects
// are an error.
func (r *Route53) AddRecords(zone string, sets ...RecordSet) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	z, err := r.findZone(zone)
	if err != nil {
		return err
	}
	var batch []change
	for _, s := range sets {
		batch = append(batch, change{"CREATE", s})
	}
	return r.applyBatch(z, batch)
}

// RecordSets returns the record sets of a hosted zone without its own NS record set.
func (r *Route53) RecordSets(zone string) []RecordSet {
	r.mu.Lock()
	defer r.mu.Unlock()
	z, err := r.findZone(zone)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(z.sets), func(s RecordSet) bool { return s.Name == z.name && s.Type == "NS" })
}

func (r *Route53) findZone(id string) (*hostedZone, error) {
	for _, z := range r.zones {
		if z.id == id {
			return z, nil
		}
	}
	return nil, route53NotFound("NoSuchHostedZone", "No hosted zone found with ID: %s", id)
}

// zoneDocument is a zone on the wire.
type zoneDocument struct {
	ID                     string `xml:"Id"`
	Name                   string
	CallerReference        string
	Config                 struct{ PrivateZone bool }
	ResourceRecordSetCount int
}

func (z *hostedZone) document() zoneDocument {
	d := zoneDocument{ID: "/hostedzone/" + z.id, Name: z.name, CallerReference: z.id, ResourceRecordSetCount: len(z.sets)}
	d.Config.PrivateZone = z.private
	return d
}

func (r *Route53) getZone(c route53Call) (any, error) {
	z, err := r.findZone(c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return struct{ HostedZone zoneDocument }{z.document()}, nil
}

// listZones lists zones from a start name, sorted by name and id.
func (r *Route53) listZones(c route53Call) (any, error) {
	q := c.URL.Query()
	from, fromID := q.Get("dnsname"), q.Get("hostedzoneid")
	var zones []zoneDocument
	for _, z := range r.zones {
		before := from != "" && reverseLabels(z.name) < reverseLabels(fullyQualified(from)) || fromID != "" && z.name == fullyQualified(from) && z.id < fromID
		if !before {
			zones = append(zones, z.document())
		}
	}
	requested, _ := strconv.Atoi(q.Get("maxitems")) // an invalid number means no limit
	part, truncated := limitPage(r, zones, requested)
	answer := struct {
		HostedZones      struct{ HostedZone []zoneDocument }
		IsTruncated      bool
		NextDNSName      string `xml:",omitempty"`
		NextHostedZoneID string `xml:"NextHostedZoneId,omitempty"`
		MaxItems         int
	}{IsTruncated: truncated, MaxItems: max(len(part), requested)}
	answer.HostedZones.HostedZone = part
	if truncated {
		next := zones[len(part)]
		answer.NextDNSName, answer.NextHostedZoneID = next.Name, strings.TrimPrefix(next.ID, "/hostedzone/")
	}
	return answer, nil
}

// listSets lists record sets from a start name, type and identifier.
func (r *Route53) listSets(c route53Call) (any, error) {
	z, err := r.findZone(c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	q := c.URL.Query()
	sets := slices.Clone(z.sets)
	if name := q.Get("name"); name != "" {
		from := RecordSet{Name: fullyQualified(name), Type: q.Get("type"), SetIdentifier: q.Get("identifier")}.key()
		sets = slices.DeleteFunc(sets, func(s RecordSet) bool { return slices.Compare(keySlice(s.key()), keySlice(from)) < 0 })
	}
	requested, _ := strconv.Atoi(q.Get("maxitems")) // an invalid number means no limit
	part, truncated := limitPage(r, sets, requested)
	answer := struct {
		ResourceRecordSets   struct{ ResourceRecordSet []RecordSet }
		IsTruncated          bool
		NextRecordName       string `xml:",omitempty"`
		NextRecordType       string `xml:",omitempty"`
		NextRecordIdentifier string `xml:",omitempty"`
		MaxItems             int
	}{IsTruncated: truncated, MaxItems: max(len(part), requested)}
	answer.ResourceRecordSets.ResourceRecordSet = part
	if truncated {
		next := sets[len(part)]
		answer.NextRecordName, answer.NextRecordType, answer.NextRecordIdentifier = next.Name, next.Type, next.SetIdentifier
	}
	return answer, nil
}

func keySlice(k [3]string) []string { return k[:] }

// changeInfo is the state of a change on the wire.
type changeInfo struct {
	ChangeInfo struct {
		ID                  string `xml:"Id"`
		Status, SubmittedAt string
	}
}

// infoOf returns the state of a change that is INSYNC after a number of polls.
func infoOf(id string, polls int) changeInfo {
	var c changeInfo
	c.ChangeInfo.ID, c.ChangeInfo.Status, c.ChangeInfo.SubmittedAt = "/change/"+id, "INSYNC", "2026-01-01T00:00:00Z"
	if polls > 0 {
		c.ChangeInfo.Status = "PENDING"
	}
	return c
}

func (r *Route53) getChange(c route53Call) (any, error) {
	id := c.PathValue("id")
	remaining, known := r.changes[id]
	if !known {
		return nil, route53NotFound("NoSuchChange", "Could not find resource with ID: %s", id)
	}
	r.changes[id] = max(0, remaining-1)
	return infoOf(id, remaining), nil
}
