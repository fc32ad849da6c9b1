package local

import (
	"encoding/json"
	"testing"

	"skyserve/provision"
)

// Machines listen on the ports of the service, and others connect to the advertised ones, which a later assignment keeps.
func TestAdvertisedPorts(t *testing.T) {
	for _, advertised := range []int{0, 20001} {
		svc := newService(t, "chat")
		text, err := json.Marshal(slotFile{Port: 10001, AdvertisedPort: advertised})
		if err == nil {
			err = writeFile(svc.configFile(fileSlots), text)
		}
		if err != nil {
			t.Fatal(err)
		}
		slots, err := svc.assignSlots(10001, []string{"lb-us-0", "lb-eu-0"}, []string{"us-0", "eu-0"})
		if err != nil {
			t.Fatal(err)
		}
		moved := slots
		moved.Port, moved.AdvertisedPort = 20001, 0
		for id, kind := range map[string]provision.ObjectKind{"lb-eu-0": provision.KindBalancer, "eu-0": provision.KindReplica, "dns": provision.KindNameServer} {
			got, want := slots.endpoints(id, kind), slotFile{Port: 10001, Balancers: slots.Balancers, Engines: slots.Engines}.endpoints(id, kind)
			if advertised != 0 {
				want.Advertised = moved.endpoints(id, kind).Listen
			}
			if got != want {
				t.Errorf("advertised from %d: %s has %+v, want %+v", advertised, id, got, want)
			}
		}
	}
}
