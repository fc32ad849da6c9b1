package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"skyserve/internal/service"
)

const pricesYAML = `name: chat
models:
  - name: m
    gpus: [{type: L4, tps: 1000%s}]
regions:
  - name: aws/us-east-1
    replicas: {min: 1, max: 20}
%s
  - name: aws/eu-west-1
    replicas: {min: 1, max: 20}
%s
`

// The local SSDs of a replica at Google are part of its price; at AWS they cost nothing.
func TestReviewAddsLocalSSDs(t *testing.T) {
	text := strings.ReplaceAll(fmt.Sprintf(pricesYAML, "%s", "", ""), "aws/eu-west-1", "gcp/europe-west4")
	both := market(map[service.Region][2]float64{"aws/us-east-1": {0.9, 0.3}, "gcp/europe-west4": {0.9, 0.5}})
	for _, prices := range [][]MachinePrice{both, nil} {
		bill := map[string]float64{} // what local SSDs add, by region
		for option, sign := range map[string]float64{", local_ssds: 1": 1, "": -1} {
			for _, c := range reviewed(t, fmt.Sprintf(text, option), nil, nil, ReviewOptions{Prices: prices}).Changes {
				bill[c.Region] += sign * c.CostChangePerHour
			}
		}
		for region, want := range map[string]float64{"aws/us-east-1": 0, "gcp/europe-west4": 375 * 0.08 / 730} {
			if math.Abs(bill[region]-want) > 1e-9 {
				t.Errorf("%s: local SSDs add $%g per hour, want $%g", region, bill[region], want)
			}
		}
	}
}

// market is the clouds' prices: L4s at an on-demand and a spot price by region, 0 = unknown.
func market(prices map[service.Region][2]float64) []MachinePrice {
	var all []MachinePrice
	for r, p := range prices {
		for _, m := range []MachinePrice{
			{GPUs: 1, CapacityType: service.CapacityOnDemand, USDPerHour: 2 * p[0]},
			{GPUs: 1, CapacityType: service.CapacityOnDemand, USDPerHour: p[0]},
			{GPUs: 1, CapacityType: service.CapacitySpot, USDPerHour: p[1]},
			{GPUs: 4, CapacityType: service.CapacityOnDemand, USDPerHour: 5 * p[0]},
		} {
			if m.Region, m.GPU, m.Source = r, "L4", "AWS price list, "+r.ShortName(); m.USDPerHour > 0 {
				all = append(all, m)
			}
		}
	}
	return all
}

// A plan uses and bills each region's current cloud price; prices and reservations in the file take
// precedence, and list prices replace missing ones.
func TestReviewUsesRegionalPrices(t *testing.T) {
	const east, west = "aws/us-east-1", "aws/eu-west-1"
	both := map[service.Region][2]float64{east: {0.9, 0.3}, west: {1.1, 0.5}}
	spot := "    capacity: [spot, on_demand]"
	for _, c := range []struct {
		name               string
		stated, east, west string // parts of the file
		market             map[service.Region][2]float64
		bill               [2]float64 // of the first replica in each region
		says, never        string
	}{
		{"on demand", "", "", "", both, [2]float64{0.9, 1.1}, "L4 in aws/eu-west-1: $1.1 per hour (AWS price list, eu-west-1, on demand)", "list price"},
		{"the same everywhere", "", "", "", map[service.Region][2]float64{east: {0.9, 0.3}, west: {0.9, 0.3}}, [2]float64{0.9, 0.9}, "", "in every region"},
		{"spot", "", spot, spot, both, [2]float64{0.3, 0.5}, "L4 in aws/us-east-1 on spot: $0.3 per hour", "40 %"},
		{"spot that nobody prices", "", spot, spot, map[service.Region][2]float64{east: {0.9, 0}, west: {1.1, 0.5}}, [2]float64{0.36, 0.5}, "L4 in aws on spot: 40 % of the on-demand price", ""},
		{"the file's price", ", price: 0.7", "", "", both, [2]float64{0.7, 0.7}, "L4: $0.7 per hour, as set for m", "AWS price list"},
		{"the file's price and spot", ", price: 0.7", spot, "", both, [2]float64{0.3, 0.7}, "L4: $0.7 per hour, as set for m", ""},
		{"reserved", "", "    reserved: [{type: g6.xlarge, count: 1, price: 0.42}]", "", both, [2]float64{0, 1.1}, "reservations of $0.42 per hour are billed in any case", ""},
		{"one region does not respond", "", "", "", map[service.Region][2]float64{west: {1.1, 0.5}}, [2]float64{0.8048, 1.1}, "L4 in aws/us-east-1: $0.8048 per hour (g6.xlarge in us-east-1, on demand)", "every region"},
		{"a region without prices", "", "", "", map[service.Region][2]float64{east: {0, 0}, west: {1.1, 0.5}}, [2]float64{0.8048, 1.1}, "L4 in aws/us-east-1: $0.8048 per hour (g6.xlarge in us-east-1, on demand)", ""},
		{"four GPUs", ", count: 4", "", "", both, [2]float64{4.5, 5.5}, "4xL4 in aws/us-east-1: $4.5 per hour", ""},
		{"four GPUs by the list", ", count: 4", "", "", nil, [2]float64{4.6016, 4.6016}, "4xL4 in aws: $4.602 per hour (g6.12xlarge in us-east-1, on demand) in every region", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := ReviewOptions{Prices: market(c.market)}
			p := reviewed(t, fmt.Sprintf(pricesYAML, c.stated, c.east, c.west), nil, nil, o)
			bill := map[string]float64{}
			for _, change := range p.Changes {
				bill[change.Region] += change.CostChangePerHour
			}
			text := strings.Join(p.Assumed, "\n")
			if p.Status != StatusOptimal || math.Abs(bill[east]-c.bill[0])+math.Abs(bill[west]-c.bill[1]) > 1e-9 {
				t.Errorf("%s: billed %v, want %v: %+v", p.Status, bill, c.bill, p.Changes)
			}
			if !strings.Contains(text, c.says) || c.never != "" && strings.Contains(text, c.never) {
				t.Errorf("must contain %q and not %q:\n%s", c.says, c.never, text)
			}
		})
	}
}

// Load that any region may serve is placed where machines are cheap.
func TestReviewChoosesTheCheaperRegion(t *testing.T) {
	for cheap, expensive := range map[service.Region]service.Region{"aws/us-east-1": "aws/eu-west-1", "aws/eu-west-1": "aws/us-east-1"} {
		o := ReviewOptions{LocalShare: 0.01, Prices: market(map[service.Region][2]float64{cheap: {0.8, 0}, expensive: {1.2, 0}})}
		h := loaded(t, 300, "m", map[service.Region]float64{cheap: 2000, expensive: 2000})
		p := reviewed(t, fmt.Sprintf(pricesYAML, "", "", ""), nil, h, o)
		then := map[string]int{}
		for _, c := range p.Changes {
			then[c.Region] += c.Planned
		}
		if then[string(expensive)] != 1 || then[string(cheap)] < 3 {
			t.Errorf("%s is cheap: %v", cheap, then)
		}
	}
}
