package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// impliedActions are permissions that no call is named after: AWS requires them for parameters of other
// calls, by the tables of the Service Authorization Reference.
var impliedActions = []string{"iam:PassRole", "iam:TagInstanceProfile", "iam:TagRole", "s3:PutBucketOwnershipControls", "s3:TagResource", "ssm:GetParameters"}

// actionNames are the permissions for calls of S3 with other names, by the tables of the Service Authorization
// Reference.
var actionNames = map[string]string{
	"ListBuckets": "ListAllMyBuckets", "ListObjectsV2": "ListBucket", "HeadObject": "GetObject", "HeadBucket": "ListBucket",
	"GetPublicAccessBlock": "GetBucketPublicAccessBlock", "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}

// documentedActions returns the actions of the operator's policy in docs/clouds.md.
func documentedActions(t *testing.T) map[string]bool {
	t.Helper()
	guide, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(guide), "```json\n")
	text, _, ended := strings.Cut(rest, "```")
	var policy struct{ Statement []struct{ Action []string } }
	if err := json.Unmarshal([]byte(text), &policy); err != nil || !found || !ended {
		t.Fatalf("no policy in docs/clouds.md: %v", err)
	}
	actions := map[string]bool{}
	for _, s := range policy.Statement {
		for _, a := range s.Action {
			if actions[a] {
				t.Errorf("%s is in the policy twice", a)
			}
			actions[a] = true
		}
	}
	return actions
}

// sdkCall matches a call or a paginator of AWS's SDK in the providers.
var sdkCall = regexp.MustCompile(`\.New([A-Z]\w+)Paginator\(|\b(?:ec2|iam|sts|s3|quotas|api|pricing)\.([A-Z]\w+)\(ctx`)

// The documented policy contains every call in the source of the providers and nothing else.
func TestOperatorPolicyMatchesSource(t *testing.T) {
	documented, called := map[string]bool{}, map[string]bool{}
	for a := range documentedActions(t) {
		if !slices.Contains(impliedActions, a) {
			documented[a[strings.Index(a, ":")+1:]] = true
		}
	}
	for _, dir := range []string{"aws", "dns"} {
		files, err := filepath.Glob("../../provision/" + dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range sdkCall.FindAllStringSubmatch(string(text), -1) {
				if name := m[1] + m[2]; !strings.HasSuffix(file, "_test.go") && name != "ZoneID" {
					called[cmp.Or(actionNames[name], name)] = true
				}
			}
		}
	}
	delete(called, "TagRole") // implied too
	if got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(called)); !slices.Equal(got, want) {
		t.Errorf("the policy has  %q\nthe providers call %q", got, want)
	}
}

// An operator with exactly the documented policy can check, rehearse, deploy, look at and delete a
// service with a name and with shell access.
func TestOperatorPolicySuffices(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	e, documented := emulate(t), documentedActions(t)
	e.aws.Configure(func() {
		e.aws.DefaultQuotaLimits = map[string]float64{ // codes of https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
			"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 64, "L-7212CCBC": 64, "L-C4BD4855": 64, "L-1216C47A": 64, "L-34B43A08": 64,
		}
		e.aws.DenialCode = func(_, action string) string {
			if !documented[action] {
				return "UnauthorizedOperation"
			}
			return ""
		}
	})
	text := strings.NewReplacer("  - name: aws/us-east-1\n", "  - name: aws/us-east-1\n    access: ssm\n").Replace(cloudService)
	up := append(e.upOf(text), "--yes")
	e.skyserve(exitOK, e.at("doctor", up[1])...)
	e.skyserve(exitOK, up...)
	e.skyserve(exitOK, e.at("status", "chat")...)
	e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
	e.skyserve(exitOK, e.rehearse(text, "--dns")...)
	e.skyserve(exitOK, e.at("gc", "--region", "aws/us-east-1", "--dns-zone", "example.com", "--yes")...)
	e.checkNothingIsLeft("")
	for action := range e.faults.CallCounts() {
		if strings.HasPrefix(action, "route53:") && !documented[action] {
			t.Errorf("%s is not in the policy", action)
		}
	}
}
