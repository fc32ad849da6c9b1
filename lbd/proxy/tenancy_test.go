package proxy

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// twoTenants returns the keys sk-a and sk-b of two tenants.
func twoTenants(t *testing.T) []service.APIKey {
	t.Helper()
	keys, err := service.ParseKeys("sk-a name=a tenant=anna\nsk-b name=b tenant=ben", service.KeyLimits{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const (
	asAnna = "Authorization: Bearer sk-a"
	asBen  = "Authorization: Bearer sk-b"
)

var longBody = `{"model":"` + testModel + `","messages":[{"role":"user","content":"` + strings.Repeat("the secret plan ", 40) + `"}]}`

// matched returns the number of prompt bytes that were expected to be cached at the request's
// target.
func (b *balancer) matched(id string) int {
	b.t.Helper()
	d, known := b.Decision(id)
	if !known || d.Decision == nil {
		b.t.Fatalf("no decision about %s", id)
	}
	return d.Decision.MatchBytes
}

// Prompts of one tenant are not matched for another, unless the operator allows sharing. A service
// without keys has one tenant.
func TestPrefixesAreSeparatePerTenant(t *testing.T) {
	for _, c := range []struct {
		name         string
		keys, shares bool
		found        bool // by the other tenant
	}{{"with keys", true, false, false}, {"with keys, shared", true, true, true}, {"without keys", false, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(t)
			o.SharePrefixes = c.shares
			if c.keys {
				o.Keys = twoTenants(t)
			}
			b := start(t, o)
			b.attach("us-0", engine(t, whole(plainReply)))
			for _, lookup := range []struct{ id, as string }{{"first", asAnna}, {"again", asAnna}, {"other", asBen}} {
				expect(t, b.post(chatPath, longBody, lookup.as, "X-Request-Id: "+lookup.id), 200, "")
			}
			if b.matched("first") != 0 || b.matched("again") < 600 {
				t.Errorf("of its own tenant's prompt %d bytes match first, %d later", b.matched("first"), b.matched("again"))
			}
			if got := b.matched("other"); (got > 0) != c.found {
				t.Errorf("of another tenant's prompt %d bytes match", got)
			}
		})
	}
}

// The sharing of prefixes can be changed without a restart.
func TestSharePrefixesIsReloaded(t *testing.T) {
	o := testOptions(t)
	o.Keys = twoTenants(t)
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	b.SetSharePrefixes(true)
	expect(t, b.post(chatPath, longBody, asAnna), 200, "")
	expect(t, b.post(chatPath, longBody, asBen, "X-Request-Id: shared"), 200, "")
	b.SetSharePrefixes(false)
	expect(t, b.post(chatPath, longBody, asBen, "X-Request-Id: apart"), 200, "")
	if b.matched("shared") == 0 || b.matched("apart") != 0 {
		t.Errorf("%d bytes are found while they share, %d afterwards", b.matched("shared"), b.matched("apart"))
	}
}

// askedOf returns the requests at two balancers, the one that received it from the client and the one
// that served it.
func askedOf(t *testing.T, token string, headers ...string) (here, there *core.Request) {
	t.Helper()
	var ends [2]func() []record.Line
	var both [2]*balancer
	for i, id := range []string{"lb-us-0", "lb-eu-0"} {
		o := roundRobin(t)
		o.Self.ID, o.Self.Region, o.Self.PeerToken, o.Keys = id, service.Region("local/"+id[3:5]), token, twoTenants(t)
		both[i], ends[i] = recorded(t, o)
	}
	both[0].AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: both[1].url}, nil)
	both[1].attach("eu-0", engine(t, whole(plainReply)))
	both[0].receiveReport("lb-eu-0")
	expect(t, both[0].post(chatPath, longBody, headers...), 200, "")
	for i := range both {
		both[i].settled()
	}
	return arrivals(ends[0]())[0], arrivals(ends[1]())[0]
}

// The balancers of a service compute the same hashes for a tenant's prompt, and different ones for
// different tenants. The same applies to sessions.
func TestBalancersDeriveSameTenantSeeds(t *testing.T) {
	anna, annaThere := askedOf(t, "token", asAnna, "X-Session-Id: s1")
	ben, benThere := askedOf(t, "token", asBen, "X-Session-Id: s1")
	for _, c := range []struct {
		name        string
		here, there *core.Request
	}{{"anna", anna, annaThere}, {"ben", ben, benThere}} {
		if !slices.Equal(c.here.Prompt, c.there.Prompt) || c.here.Session != c.there.Session || c.there.Tenant != c.name {
			t.Errorf("%s: asked as tenant %q in session %q with %x, forwarded as %q in %q with %x",
				c.name, c.here.Tenant, c.here.Session, c.here.Prompt[:1], c.there.Tenant, c.there.Session, c.there.Prompt[:1])
		}
	}
	if slices.ContainsFunc(anna.Prompt, func(h uint64) bool { return slices.Contains(ben.Prompt, h) }) || anna.Session == ben.Session {
		t.Errorf("two tenants: sessions %q and %q, prompts %x and %x", anna.Session, ben.Session, anna.Prompt[:1], ben.Prompt[:1])
	}
}

// A request for a tier above its key's maximum is rejected with the reason; without a tier it has the
// key's tier. A forwarded request was already checked by its origin.
func TestTierAboveKeyMaximumIsRejected(t *testing.T) {
	us, eu := pair(t, "token")
	keys, err := service.ParseKeys("sk max_tier=IW-N", service.KeyLimits{})
	if err != nil {
		t.Fatal(err)
	}
	us.SetKeys(keys)
	eu.SetKeys(keys)
	eu.attach("eu-0", engine(t, whole(plainReply)))
	us.receiveReport("lb-eu-0")
	for _, c := range []struct {
		tier   string
		status int
		served service.Tier
	}{{"IW-F", 403, ""}, {"iw-f", 403, ""}, {"IW-N", 200, service.TierNormal}, {"NIW", 200, service.TierDeferred}, {"", 200, service.TierNormal}} {
		resp := us.post(chatPath, plainBody, asAcme, "X-Skyserve-Tier: "+c.tier, "X-Request-Id: r")
		body := read(t, resp)
		if resp.StatusCode != c.status {
			t.Fatalf("tier %q: %d %s, want %d", c.tier, resp.StatusCode, body, c.status)
		}
		if c.status == 403 {
			if message, kind, code := apiErrorOf(t, body); code != "tier_not_allowed" || kind != "permission_error" || !contains(message, "allows tier normal (IW-N) at most, got fast (IW-F)", headerTier) {
				t.Errorf("tier %q: %s, %s, %s", c.tier, message, kind, code)
			}
			continue
		}
		if d, _ := eu.Decision("r"); d.Tier != c.served {
			t.Errorf("tier %q was served as %q", c.tier, d.Tier)
		}
	}
}

// A session's name is unique to its tenant, whether it is set by key, header, user or address.
// Without a tenant it is the same at every balancer.
func TestSessionsAreSeparatePerTenant(t *testing.T) {
	for _, c := range []struct{ key, header, user, client string }{
		{key: "s"}, {header: "s"}, {user: "s"}, {client: "10.0.0.1:99"},
	} {
		name := func(tenant string) string {
			return sessionName(tenant, []byte(c.key), c.header, []byte(c.user), c.client)
		}
		if name("anna") == name("ben") || name("anna") == name("") {
			t.Errorf("%+v: %q, %q and %q", c, name("anna"), name("ben"), name(""))
		}
	}
	if sessionName("a", nil, "bc", nil, "") == sessionName("ab", nil, "c", nil, "") {
		t.Error("the name of the tenant runs into that of the session")
	}
	if got, want := sessionName("", nil, "s1", nil, ""), "9a275e3f454930d1"; got != want { // xxh3 of s1
		t.Errorf("without a tenant %q, want %q", got, want)
	}
}
