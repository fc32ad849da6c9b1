package aws_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// blockDay is the time of the cloud in the tests of blocks.
var blockDay = time.Date(2027, 3, 1, 8, 0, 0, 0, time.UTC)

// blockCloud returns a cloud with its own clock that sells one block of two days from the next day.
func blockCloud(f *testcloud.Faults) (cloud *testcloud.AWS, setClock func(time.Time)) {
	cloud = newCloud(f)
	now := blockDay
	cloud.Now = func() time.Time { return now }
	cloud.PutBlockOffering("us-east-1", blockForSale("cb-0a"))
	return cloud, func(t time.Time) { cloud.Configure(func() { now = t }) }
}

func blockForSale(id string) testcloud.BlockOffering {
	return testcloud.BlockOffering{
		ID: id, Zone: "us-east-1b", Type: "g6.xlarge", Count: 2, Fee: "96.00",
		Starts: blockDay.Add(24 * time.Hour), Ends: blockDay.Add(72 * time.Hour),
	}
}

// twoDays is the query that finds blockForSale.
var twoDays = provision.BlockQuery{Type: "g6.xlarge", Count: 2, Days: 2}

// Blocks are found by type, number, length and time.
func TestBlockOfferings(t *testing.T) {
	cloud, _ := blockCloud(nil)
	cloud.PutBlockOffering("us-east-1", blockForSale("cb-0b"))
	cloud.Configure(func() { cloud.PageSize = 1 })
	p := open(t, cloud)
	late, early := twoDays, twoDays
	late.From, early.To = blockDay.Add(25*time.Hour), blockDay.Add(71*time.Hour)
	for name, c := range map[string]struct {
		q     provision.BlockQuery
		found int
	}{
		"all": {twoDays, 2}, "from": {late, 0}, "to": {early, 0},
		"type":  {provision.BlockQuery{Type: "p5.48xlarge", Count: 2, Days: 2}, 0},
		"count": {provision.BlockQuery{Type: "g6.xlarge", Count: 1, Days: 2}, 0},
		"days":  {provision.BlockQuery{Type: "g6.xlarge", Count: 2, Days: 3}, 0},
	} {
		got, err := p.BlockOfferings(t.Context(), east, c.q)
		if err != nil || len(got) != c.found {
			t.Errorf("%s: got %+v, %v, want %d offerings", name, got, err, c.found)
		}
	}
	got, _ := p.BlockOfferings(t.Context(), east, twoDays)
	want := provision.BlockOffering{
		ID: "cb-0a", Region: east, Zone: "us-east-1b", Type: "g6.xlarge", Count: 2, UpfrontPrice: 96, Currency: "USD",
		Starts: blockDay.Add(24 * time.Hour), Ends: blockDay.Add(72 * time.Hour),
	}
	if len(got) == 0 || !reflect.DeepEqual(got[0], want) || got[0].MachinePrice() != 1 {
		t.Errorf("got %+v, want %+v at 1 per hour", got, want)
	}
}

// A block is bought once, whatever happens to the response; its state follows its payment and the clock.
func TestBlockIsBoughtOnce(t *testing.T) {
	for name, outcome := range map[string]testcloud.Outcome{
		"served": testcloud.Served, "response lost": testcloud.ResponseLost, "request lost": testcloud.RequestLost, "throttled": testcloud.Throttled,
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			cloud, setClock := blockCloud(&testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
				if c.Action != "ec2:PurchaseCapacityBlock" || !first {
					return testcloud.Served
				}
				first = false
				return outcome
			}})
			p := open(t, cloud)
			v, bought, err := p.BuyBlock(t.Context(), east, "cb-0a")
			executed := outcome == testcloud.Served || outcome == testcloud.ResponseLost
			if bought != executed || (err == nil) != executed || cloud.BlockPurchases("us-east-1") != map[bool]int{true: 1}[executed] {
				t.Fatalf("got %+v, %t, %v after %d purchases", v, bought, err, cloud.BlockPurchases("us-east-1"))
			}
			again, bought, err := p.BuyBlock(t.Context(), east, "cb-0a")
			if err != nil || bought == executed || cloud.BlockPurchases("us-east-1") != 1 || executed && again.ID != v.ID {
				t.Errorf("second call got %+v, %t, %v after %d purchases", again, bought, err, cloud.BlockPurchases("us-east-1"))
			}
			for _, c := range []struct {
				at     time.Duration
				state  string
				active bool
			}{{0, "scheduled", false}, {24 * time.Hour, "active", true}, {72 * time.Hour, "expired", false}} {
				setClock(blockDay.Add(c.at))
				got, err := p.Reservations(t.Context(), east, []string{again.ID})
				if err != nil || len(got) != 1 || got[0].State != c.state || got[0].Active != c.active || got[0].Pending != (c.state == "scheduled") || !got[0].Block {
					t.Errorf("after %s got %+v, %v, want state %s", c.at, got, err, c.state)
				}
			}
		})
	}
}

// An offering that is unknown, expired or sold to another is reported as such, and nothing is bought.
func TestBlockIsGone(t *testing.T) {
	cloud, setClock := blockCloud(nil)
	p := open(t, cloud)
	var gone *provision.BlockGoneError
	if _, _, err := p.BuyBlock(t.Context(), east, "cb-0f"); !errors.As(err, &gone) {
		t.Errorf("unknown offering: got %v", err)
	}
	setClock(blockDay.Add(25 * time.Hour))
	if _, _, err := p.BuyBlock(t.Context(), east, "cb-0a"); !errors.As(err, &gone) || gone.ID != "cb-0a" || cloud.BlockPurchases("us-east-1") != 0 {
		t.Errorf("expired offering: got %v after %d purchases", err, cloud.BlockPurchases("us-east-1"))
	}
}

// A machine in a block is launched with the block's market type, and EC2 terminates it 30 minutes before the
// end. A block that accepts no machines is a lack of capacity.
func TestMachineInBlock(t *testing.T) {
	cloud, setClock := blockCloud(nil)
	p := open(t, cloud)
	v, _, err := p.BuyBlock(t.Context(), east, "cb-0a")
	if err != nil {
		t.Fatal(err)
	}
	w := machine("us-east-1-0", provision.KindReplica, east, service.CapacityReserved)
	w.Offerings[0].Reservation, w.Offerings[0].Block, w.Offerings[0].Ends = v.ID, true, v.MachinesEnd()
	launchPrerequisites(t, p, east)
	var full *provision.CapacityError
	if _, err := p.Launch(t.Context(), w); !errors.As(err, &full) || full.Scope != provision.ScopeZone {
		t.Errorf("launch before the start got %v", err)
	}
	setClock(v.Starts)
	launch(t, p, w)
	running := machinesOf(list(t, p))
	if len(running) != 1 || !running[0].Offering.Block || running[0].Offering.Reservation != v.ID || !running[0].Offering.Ends.Equal(v.Ends.Add(-30*time.Minute)) {
		t.Fatalf("got %+v", running)
	}
	setClock(v.Ends.Add(-31 * time.Minute))
	if got := machinesOf(list(t, p)); len(got) != 1 {
		t.Errorf("31 minutes before the end got %+v", got)
	}
	setClock(v.Ends.Add(-30 * time.Minute))
	if got := machinesOf(list(t, p)); len(got) != 0 {
		t.Errorf("30 minutes before the end got %+v", got)
	}
	if _, err := p.Launch(t.Context(), w); !errors.As(err, &full) {
		t.Errorf("launch at the end got %v", err)
	}
}

func machinesOf(have []provision.Object) (machines []provision.Object) {
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			machines = append(machines, o)
		}
	}
	return machines
}
