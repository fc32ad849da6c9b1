package testcloud

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// change is one change of a batch.
type change struct {
	Action            string // CREATE, UPSERT, DELETE
	ResourceRecordSet RecordSet
}

// changeSets executes a batch atomically.
func (r *Route53) changeSets(c route53Call) (any, error) {
	z, err := r.findZone(c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	var batch struct {
		Changes []change `xml:"ChangeBatch>Changes>Change"`
	}
	if err := c.decode(&batch); err != nil {
		return nil, err
	}
	if err := r.applyBatch(z, batch.Changes); err != nil {
		return nil, err
	}
	id := r.nextID("C")
	r.changes[id] = r.PendingPolls
	return infoOf(id, r.PendingPolls), nil
}

// applyBatch applies the changes in order to a copy, and replaces the zone's record sets if all
// succeeded.
func (r *Route53) applyBatch(z *hostedZone, batch []change) error {
	if len(batch) == 0 || len(batch) > 1000 {
		return route53BadRequest("InvalidInput", "a batch has 1 to 1000 changes, got %d", len(batch))
	}
	next := &hostedZone{id: z.id, name: z.name, private: z.private, sets: slices.Clone(z.sets)}
	var problems []string
	for _, c := range batch {
		s := c.ResourceRecordSet
		s.Name = fullyQualified(s.Name)
		if s.HealthCheckID != "" && r.findHealthCheck(s.HealthCheckID) == nil {
			return route53NotFound("NoSuchHealthCheck", "No health check exists with the specified ID: %s", s.HealthCheckID)
		}
		if problem := next.applyChange(c.Action, s); problem != "" {
			problems = append(problems, problem)
		}
	}
	if len(problems) > 0 {
		return route53BadRequest("InvalidChangeBatch", "[%s]", strings.Join(problems, ", "))
	}
	z.sets = next.sets
	return nil
}

// applyChange applies one change. It returns Route 53's error message, or "" on success.
func (z *hostedZone) applyChange(action string, s RecordSet) string {
	at := slices.IndexFunc(z.sets, func(o RecordSet) bool { return o.key() == s.key() })
	switch {
	case s.Name != z.name && !strings.HasSuffix(s.Name, "."+z.name):
		return fmt.Sprintf("RRSet with DNS name %s is not permitted in zone %s", s.Name, z.name)
	case action == "DELETE" && at < 0:
		return fmt.Sprintf("Tried to delete resource record set %s but it was not found", s.describe())
	case action == "DELETE" && !reflect.DeepEqual(z.sets[at], s):
		return fmt.Sprintf("Tried to delete resource record set %s but the values provided do not match the current values", s.describe())
	case action == "CREATE" && at >= 0:
		return fmt.Sprintf("Tried to create resource record set %s but it already exists", s.describe())
	}
	if at >= 0 {
		z.sets = slices.Delete(z.sets, at, at+1)
	}
	if action == "DELETE" {
		return ""
	}
	if problem := z.conflict(s); problem != "" {
		return problem
	}
	z.sets = append(z.sets, s)
	slices.SortFunc(z.sets, func(a, b RecordSet) int { return slices.Compare(keySlice(a.key()), keySlice(b.key())) })
	return ""
}

// describe formats a record set as in Route 53's errors.
func (s RecordSet) describe() string {
	if s.SetIdentifier == "" {
		return fmt.Sprintf("[name='%s', type='%s']", s.Name, s.Type)
	}
	return fmt.Sprintf("[name='%s', type='%s', set identifier='%s']", s.Name, s.Type, s.SetIdentifier)
}

// conflict returns Route 53's error message for a record set that is invalid or conflicts with others; empty if
// it is valid.
func (z *hostedZone) conflict(s RecordSet) string {
	if problem := z.invalidReason(s); problem != "" {
		return problem
	}
	for _, o := range z.sets {
		if o.Name != s.Name {
			continue
		}
		switch {
		case (o.Type == "CNAME") != (s.Type == "CNAME"):
			return fmt.Sprintf("RRSet of type %s with DNS name %s is not permitted as it conflicts with other records with the same DNS name in zone %s", s.Type, s.Name, z.name)
		case o.Type != s.Type:
		case o.policy() != s.policy() || s.policy() == "simple":
			return fmt.Sprintf("RRSet with DNS name %s, type %s, SetIdentifier %s cannot be created as a %s set exists with the same name and type", s.Name, s.Type, s.SetIdentifier, o.policy())
		case s.routingRegion() != "" && s.routingRegion() == o.routingRegion():
			return fmt.Sprintf("RRSet with DNS name %s, type %s, SetIdentifier %s, region %s cannot be created as a set of the same region exists", s.Name, s.Type, s.SetIdentifier, s.routingRegion())
		}
	}
	return ""
}

// invalidReason returns Route 53's error message for a record set that is invalid by itself; empty if it is
// valid.
func (z *hostedZone) invalidReason(s RecordSet) string {
	if a := s.AliasTarget; a != nil {
		target := fullyQualified(a.DNSName)
		if a.HostedZoneID == z.id && !slices.ContainsFunc(z.sets, func(o RecordSet) bool { return o.Name == target && o.Type == s.Type }) {
			return fmt.Sprintf("Tried to create an alias that targets %s, type %s in zone %s, but that target was not found", target, s.Type, z.id)
		}
		if s.TTL != nil || len(s.values()) > 0 {
			return "Invalid request: an alias has neither TTL nor values"
		}
		return ""
	}
	if s.TTL == nil || len(s.values()) == 0 {
		return fmt.Sprintf("Invalid request: Expected exactly one of [AliasTarget, all of [TTL, and ResourceRecords]] in %s", s.describe())
	}
	if s.policy() == "latency" && len(s.values()) != 1 {
		return "Invalid request: a latency record set has one value"
	}
	for _, v := range s.values() {
		addr, err := netip.ParseAddr(v.Value)
		switch {
		case s.Type == "A" && (err != nil || !addr.Is4()), s.Type == "AAAA" && (err != nil || !addr.Is6()):
			return fmt.Sprintf("Invalid Resource Record: 'FATAL problem: %sRRDATAIllegalAddress encountered with '%s''", s.Type, v.Value)
		case s.Type == "TXT" && (!strings.HasPrefix(v.Value, `"`) || !strings.HasSuffix(v.Value, `"`)):
			return fmt.Sprintf("Invalid Resource Record: 'FATAL problem: InvalidCharacterString (Value should be enclosed in quotation marks) encountered with '%s''", v.Value)
		}
	}
	return ""
}
