package local

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/provision"
)

// A published name is stored until it is removed.
func TestStoredName(t *testing.T) {
	svc := newService(t, "chat")
	if err := svc.RemoveName(); err != nil {
		t.Error(err)
	}
	if _, has, err := svc.StoredName(); has || err != nil {
		t.Errorf("got %t, %v", has, err)
	}
	n := provision.PublicName{Name: "chat.example.com", Zone: "example.com", Service: "chat", Owner: "ab", Routing: provision.RoutingGeo, TTL: time.Minute, Private: true}
	with := n
	with.Records = []provision.DNSRecord{{ID: "lb-us-0"}}
	if err := svc.StoreName(with); err != nil {
		t.Fatal(err)
	}
	if got, has, err := svc.StoredName(); !has || err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("got %+v, %t, %v; want %+v", got, has, err, n)
	}
	if err := writeFile(svc.configFile(fileName), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := svc.StoredName(); err == nil || !strings.Contains(err.Error(), "name.json") {
		t.Errorf("damaged: got %v", err)
	}
	if err := svc.RemoveName(); err != nil {
		t.Error(err)
	}
	if _, has, err := svc.StoredName(); has || err != nil {
		t.Errorf("got %t, %v", has, err)
	}
}
