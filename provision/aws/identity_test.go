package aws_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// A role with manually attached policies is deleted too.
func TestDeleteIdentityRemovesAddedPolicies(t *testing.T) {
	for _, unseen := range []int{0, 2} {
		cloud := newCloud(&testcloud.Faults{StaleLists: unseen})
		p := open(t, cloud)
		w := roleFor(provision.RoleBalancer, provision.GrantOperate)
		o, err := p.Launch(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		cloud.AttachManagedPolicy(o.Handle, "AmazonSSMManagedInstanceCore")
		cloud.SetRolePolicy(o.Handle, "by-hand", `{"Statement":[]}`)
		if err := p.Terminate(t.Context(), o); err != nil {
			t.Error(err)
		}
		if left := cloud.RemainingResources(); len(left) != 0 {
			t.Errorf("there is still %q", left)
		}
	}
}

// Two concurrent changes of one role are retried.
func TestConcurrentRoleChangesAreRetried(t *testing.T) {
	cloud := newCloud(nil)
	var refused atomic.Int32
	cloud.DenialCode = func(_, action string) string {
		if changes := []string{"iam:PutRolePolicy", "iam:DeleteRole", "iam:DeleteInstanceProfile"}; slices.Contains(changes, action) && refused.Add(1)%2 == 1 {
			return "ConcurrentModification"
		}
		return ""
	}
	p := open(t, cloud)
	o, err := p.Launch(t.Context(), roleFor(provision.RoleBalancer, provision.GrantOperate))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t.Context(), o); err != nil || len(cloud.RemainingResources()) != 0 {
		t.Errorf("%v, and there is %q", err, cloud.RemainingResources())
	}
	if refused.Load() < 6 {
		t.Errorf("refused %d calls, want each of three once", refused.Load()/2)
	}
}

// Session access is granted only in regions with access: ssm, to both roles, with the minimum permissions of
// Session Manager. It is removed when no region has access: ssm.
func TestSessionManagerGrants(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	const name = "skyserve-chat-replica"
	for _, tt := range []struct {
		grants []provision.Grant
		in     []string
	}{
		{nil, nil},
		{[]provision.Grant{provision.GrantSession("us-west-2"), provision.GrantSession("us-east-1")}, []string{"us-east-1", "us-west-2"}},
		{[]provision.Grant{provision.GrantSession("us-east-1")}, []string{"us-east-1"}},
		{nil, nil},
	} {
		w := roleFor(provision.RoleReplica, tt.grants...)
		w.SpecHash = fmt.Sprintf("i%d", len(tt.grants))
		if _, err := provision.Apply(t.Context(), provision.Diff([]provision.Desired{w}, only(list(t, p), w.ID)), p, provision.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		if changes := provision.Diff([]provision.Desired{w}, list(t, p)); len(changes) != 0 {
			t.Errorf("%v: there is still to do %+v", tt.grants, changes)
		}
		var policy struct {
			Statement []struct {
				Action    []string
				Condition map[string]map[string]string
			}
		}
		text := cloud.RolePolicy(name, "skyserve")
		if err := json.Unmarshal([]byte(cmp.Or(text, "{}")), &policy); err != nil {
			t.Fatal(err)
		}
		var in []string
		for _, s := range policy.Statement {
			in = append(in, s.Condition["StringEquals"]["aws:RequestedRegion"])
			for _, action := range s.Action {
				if !strings.HasPrefix(action, "ssmmessages:") && action != "ssm:UpdateInstanceInformation" {
					t.Errorf("%s is allowed", action)
				}
			}
		}
		if !slices.Equal(in, tt.in) {
			t.Errorf("%v: sessions are allowed in %q, want %q", tt.grants, in, tt.in)
		}
	}
}

// Replicas may read only the configured folder of a bucket.
func TestReadGrantIsLimitedToFolder(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	w := roleFor(provision.RoleReplica, provision.GrantRead("models/llama/8b"))
	launch(t, p, w)
	if changes := provision.Diff([]provision.Desired{w}, list(t, p)); len(changes) != 0 {
		t.Errorf("there is still to do %+v", changes)
	}
	want := `{"Version":"2012-10-17","Statement":[` +
		`{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::models/llama/8b/*"]},` +
		`{"Effect":"Allow","Action":["s3:ListBucket"],"Resource":["arn:aws:s3:::models"],"Condition":{"StringEquals":{"s3:prefix":"llama/8b/"}}}]}`
	if got := cloud.RolePolicy("skyserve-chat-replica", "skyserve"); got != want {
		t.Errorf("a replica may do\n%s\nwant\n%s", got, want)
	}
	w.Grants = append(w.Grants, provision.GrantRead("models/"+strings.Repeat("long/", 60)+"er"))
	_, err := p.Launch(t.Context(), w)
	var spec *provision.SpecError
	if !errors.As(err, &spec) || !strings.Contains(err.Error(), "grants are limited to 256 characters (one tag), got 3") {
		t.Errorf("got %v, want the limit of a tag", err)
	}
}

// A balancer may write only the dns-01 challenge record of the service's name, in its hosted zone only.
func TestChallengeGrantIsLimitedToOneRecord(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	w := roleFor(provision.RoleBalancer, provision.GrantChallenge("Z0123456789ABCDEFGHIJ", "chat.example.com"))
	launch(t, p, w)
	if changes := provision.Diff([]provision.Desired{w}, list(t, p)); len(changes) != 0 {
		t.Errorf("there is still to do %+v", changes)
	}
	want := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["route53:ChangeResourceRecordSets"],` +
		`"Resource":["arn:aws:route53:::hostedzone/Z0123456789ABCDEFGHIJ"],"Condition":{"ForAllValues:StringEquals":{` +
		`"route53:ChangeResourceRecordSetsNormalizedRecordNames":"_acme-challenge.chat.example.com",` +
		`"route53:ChangeResourceRecordSetsRecordTypes":"TXT"}}}]}`
	if got := cloud.RolePolicy("skyserve-chat-balancer", "skyserve"); got != want {
		t.Errorf("a balancer may do\n%s\nwant\n%s", got, want)
	}
}

// A controller that replaces balancers may change the records of balancers below the service's name, and their health
// checks one by one. The grant fits beside others.
func TestRecordsGrantIsLimitedToName(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	zone, checks := "Z0123456789ABCDEFGHIJ", []string{"0b1b2b3b-1111-4222-8333-444455556666", "1b1b2b3b-1111-4222-8333-444455556666", "2b1b2b3b-1111-4222-8333-444455556666"}
	before := roleFor(provision.RoleBalancer, provision.GrantRecords(zone, "chat.example.com", nil))
	launch(t, p, before)
	want := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["route53:ListResourceRecordSets"],"Resource":["arn:aws:route53:::hostedzone/Z0123456789ABCDEFGHIJ"]},` +
		`{"Effect":"Allow","Action":["route53:ChangeResourceRecordSets"],"Resource":["arn:aws:route53:::hostedzone/Z0123456789ABCDEFGHIJ"],"Condition":{` +
		`"ForAllValues:StringEquals":{"route53:ChangeResourceRecordSetsRecordTypes":["A","AAAA","TXT"]},` +
		`"ForAllValues:StringLike":{"route53:ChangeResourceRecordSetsNormalizedRecordNames":["_skyserve.chat.example.com","*._skyserve.chat.example.com"]}}}`
	if got := cloud.RolePolicy("skyserve-chat-balancer", "skyserve"); got != want+"]}" {
		t.Errorf("before the name is published a balancer may do\n%s\nwant\n%s", got, want)
	}
	w := roleFor(provision.RoleBalancer, provision.GrantRecords(zone, "chat.example.com", checks), provision.GrantRead("models/"+strings.Repeat("long/", 30)))
	launch(t, p, w)
	if changes := provision.Diff([]provision.Desired{w}, list(t, p)); len(changes) != 0 {
		t.Errorf("there is still to do %+v", changes)
	}
	want = `{"Effect":"Allow","Action":["route53:UpdateHealthCheck"],"Resource":["arn:aws:route53:::healthcheck/` + strings.Join(checks, `","arn:aws:route53:::healthcheck/`) + `"]}`
	if got := cloud.RolePolicy("skyserve-chat-balancer", "skyserve"); !strings.Contains(got, want) {
		t.Errorf("a balancer may do\n%s\nwant\n%s", got, want)
	}
	none := roleFor(provision.RoleBalancer)
	launch(t, p, none)
	if changes := provision.Diff([]provision.Desired{none}, list(t, p)); len(changes) != 0 || cloud.RolePolicy("skyserve-chat-balancer", "skyserve") != "" {
		t.Errorf("without grants there is still to do %+v", changes)
	}
}
