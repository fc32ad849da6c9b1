package dns

import (
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
)

func TestRoute53Conformance(t *testing.T) {
	setAccount(t)
	for name, unseen := range map[string]int{"as it is": 0, "lists lag": 2} {
		t.Run(name, func(t *testing.T) {
			conformance.RunZone(t, func(t *testing.T) conformance.ZoneSubject {
				a := newAccount()
				a.faults.StaleLists, a.poll = unseen, time.Nanosecond
				n := world()
				slices.SortFunc(n.Records, func(a, b provision.DNSRecord) int { return strings.Compare(a.ID, b.ID) })
				return conformance.ZoneSubject{Zone: a.client(t), Reopen: func(t *testing.T) provision.DNSZone { return a.client(t) }, Name: n}
			})
		})
	}
}
