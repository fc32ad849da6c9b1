package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
)

// blockMarket serves an AWS that sells blocks, and returns options that find them.
func blockMarket(t *testing.T, faults *testcloud.Faults) (*testcloud.AWS, blocksOptions) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
	} {
		t.Setenv(name, value)
	}
	cloud := testcloud.NewAWS(faults, "us-east-1", "us-east-2")
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	starts := time.Now().UTC().Truncate(time.Hour).Add(48 * time.Hour)
	for _, o := range []testcloud.BlockOffering{
		{ID: "cb-0dear", Zone: "us-east-2b", Type: "p5.48xlarge", Count: 2, Starts: starts, Ends: starts.Add(48 * time.Hour), Fee: "6000.00"},
		{ID: "cb-0cheap", Zone: "us-east-2a", Type: "p5.48xlarge", Count: 2, Starts: starts, Ends: starts.Add(48 * time.Hour), Fee: "3840.00"},
	} {
		cloud.PutBlockOffering("us-east-2", o)
	}
	return cloud, blocksOptions{kind: "p5.48xlarge", count: 2, days: 2, regions: []string{"aws/us-east-2"}, list: outputFlags{output: "json"}, clouds: cloudFlags{endpointAWS: server.URL}}
}

// Blocks are listed with their prices, the cheapest first, and a region that fails is a warning.
func TestOffersBlocks(t *testing.T) {
	cloud, o := blockMarket(t, nil)
	cloud.Configure(func() {
		cloud.DenialCode = func(region, _ string) string { return map[string]string{"us-east-1": "UnauthorizedOperation"}[region] }
	})
	o.regions = []string{"aws/us-east-1", "aws/us-east-2"}
	var out, errOut strings.Builder
	err := runOffersBlocks(t.Context(), &o, &out, &errOut)
	var coded *exitError
	if !errors.As(err, &coded) || coded.code != exitPartial || !strings.Contains(errOut.String(), "ec2:DescribeCapacityBlockOfferings") {
		t.Errorf("got %v, %s", err, errOut.String())
	}
	var doc blockListing
	if err := json.Unmarshal([]byte(out.String()), &doc); err != nil || len(doc.Blocks) != 2 {
		t.Fatalf("got %s, %v", out.String(), err)
	}
	b := doc.Blocks[0]
	if b.ID != "cb-0cheap" || b.Zone != "us-east-2a" || b.Hours != 48 || b.Upfront != 3840 || b.PerHour != 40 || b.PerGPUHour != 5 || b.GPU != "H100" || b.GPUs != 8 || b.Currency != "USD" {
		t.Errorf("got %+v", b)
	}
	o.list.output = "table"
	out.Reset()
	if err := runOffersBlocks(t.Context(), &o, &out, &errOut); err == nil || !strings.Contains(out.String(), "16xH100") || !strings.Contains(out.String(), "3840.00 USD") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}

// An interrupted search is no failed search: the exit code is that of an interrupt.
func TestOffersBuyIsInterrupted(t *testing.T) {
	_, o := blockMarket(t, nil)
	o.output = outputFlags{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut strings.Builder
	err := runOffersBuy(ctx, &o, "cb-0cheap", strings.NewReader(""), &out, &errOut)
	if code := report(ctx, &errOut, err); code != exitInterrupted || strings.Contains(errOut.String(), "searching the block") {
		t.Errorf("exit code %d, %v, %q", code, err, errOut.String())
	}
}

// A block is bought after confirmation only, and once; the price and the lines of service.yaml are printed.
func TestOffersBuy(t *testing.T) {
	cloud, o := blockMarket(t, nil)
	buy := func(id string, o blocksOptions) (string, string, error) {
		var out, errOut strings.Builder
		err := runOffersBuy(t.Context(), &o, id, strings.NewReader("y\n"), &out, &errOut)
		return out.String(), errOut.String(), err
	}
	o.output = outputFlags{}
	_, shown, err := buy("cb-0cheap", o)
	if err == nil || !strings.Contains(shown, "AWS bills 3840.00 USD at once") || cloud.BlockPurchases("us-east-2") != 0 {
		t.Fatalf("without --yes: %v after %d purchases\n%s", err, cloud.BlockPurchases("us-east-2"), shown)
	}
	o.yes = true
	out, _, err := buy("cb-0cheap", o)
	if err != nil || !strings.HasPrefix(out, "bought: cr-") || !strings.Contains(out, "type: p5.48xlarge, count: 2, price: 40.0000}") {
		t.Fatalf("got %v\n%s", err, out)
	}
	again, _, err := buy("cb-0cheap", o)
	if err != nil || !strings.HasPrefix(again, "bought earlier: cr-") || cloud.BlockPurchases("us-east-2") != 1 {
		t.Errorf("second run: %v after %d purchases\n%s", err, cloud.BlockPurchases("us-east-2"), again)
	}
	for name, c := range map[string]struct {
		id     string
		change func(*blocksOptions)
		want   string
	}{
		"unknown id":  {"cb-0none", func(*blocksOptions) {}, "offering cb-0none is not for sale in aws/us-east-2"},
		"another day": {"cb-0dear", func(o *blocksOptions) { o.days = 3 }, "offering cb-0dear is not for sale in aws/us-east-2"},
		"two regions": {"cb-0dear", func(o *blocksOptions) { o.regions = append(o.regions, "aws/us-east-1") }, "--region must be given once"},
		"google":      {"cb-0dear", func(o *blocksOptions) { o.regions = []string{"gcp/us-central1"} }, "must be a region of AWS"},
		"no type":     {"cb-0dear", func(o *blocksOptions) { o.kind = "" }, "--type is required"},
		"odd type":    {"cb-0dear", func(o *blocksOptions) { o.kind = "c7i.large" }, "must be a machine type of AWS with GPUs"},
		"odd days":    {"cb-0dear", func(o *blocksOptions) { o.days = 15 }, "--days"},
		"odd count":   {"cb-0dear", func(o *blocksOptions) { o.count = 65 }, "--count"},
		"odd date":    {"cb-0dear", func(o *blocksOptions) { o.from = "tomorrow" }, "--from"},
		"short range": {"cb-0dear", func(o *blocksOptions) { o.from, o.to = "2027-01-01", "2027-01-02" }, "--to"},
	} {
		wrong := o
		c.change(&wrong)
		if _, _, err := buy(c.id, wrong); err == nil || !strings.Contains(err.Error(), c.want) || cloud.BlockPurchases("us-east-2") != 1 {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
