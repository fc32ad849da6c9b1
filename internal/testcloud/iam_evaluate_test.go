package testcloud

import (
	"strings"
	"testing"
)

// Policies follow AWS's documentation: nothing is allowed by default, a denial wins, and every condition
// must hold for any one of its values.
func TestPoliciesFollowIAM(t *testing.T) {
	const instance = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
	statement := func(rest string) string {
		return `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ec2:TerminateInstances","Resource":"*"` + rest + `}]}`
	}
	when := func(condition string) string { return statement(`,"Condition":{` + condition + `}`) }
	tags := func(kinds ...string) iamContext {
		c := iamContext{}
		for _, k := range kinds {
			c.addValue("aws:ResourceTag/Kind", k)
		}
		return c
	}
	keys := func(names ...string) iamContext {
		c := iamContext{}
		for _, n := range names {
			c.addValue("aws:TagKeys", n)
		}
		return c
	}
	for _, tt := range []struct {
		name, policy string
		context      iamContext
		want         bool
	}{
		{"nothing is allowed by default", `{"Statement":[]}`, nil, false},
		{"an action", statement(""), nil, true},
		{"a list of actions", `{"Statement":[{"Effect":"Allow","Action":["s3:GetObject","EC2:terminateinstances"],"Resource":["` + instance + `"]}]}`, nil, true},
		{"a wildcard in the action", `{"Statement":[{"Effect":"Allow","Action":"ec2:Term*","Resource":"*"}]}`, nil, true},
		{"another action", `{"Statement":[{"Effect":"Allow","Action":"ec2:Describe*","Resource":"*"}]}`, nil, false},
		{"any other action", `{"Statement":[{"Effect":"Allow","NotAction":"ec2:RunInstances","Resource":"*"}]}`, nil, true},
		{"any action but this", `{"Statement":[{"Effect":"Allow","NotAction":"ec2:*","Resource":"*"}]}`, nil, false},
		{"a wildcard in the resource", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"arn:aws:ec2:*:*:instance/*"}]}`, nil, true},
		{"a one-character wildcard in the resource", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"arn:aws:ec2:*:*:instance/i-?"}]}`, nil, true},
		{"another resource", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"arn:aws:ec2:*:*:volume/*"}]}`, nil, false},
		{"the case of a resource counts", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"arn:aws:ec2:*:*:Instance/*"}]}`, nil, false},
		{"all but a resource", `{"Statement":[{"Effect":"Allow","Action":"*","NotResource":"arn:aws:ec2:*:*:instance/*"}]}`, nil, false},
		{"a denial wins", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*"},{"Effect":"Deny","Action":"ec2:*","Resource":"*"}]}`, nil, false},
		{"a denial of something else", `{"Statement":[{"Effect":"Deny","Action":"s3:*","Resource":"*"},{"Effect":"Allow","Action":"*","Resource":"*"}]}`, nil, true},

		{"equal", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica"}`), tags("replica"), true},
		{"not equal", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica"}`), tags("balancer"), false},
		{"the case of a key does not count", when(`"StringEquals":{"AWS:resourcetag/KIND":"replica"}`), tags("replica"), true},
		{"the case of a value counts", when(`"StringEquals":{"aws:ResourceTag/Kind":"Replica"}`), tags("replica"), false},
		{"the case of a value is ignored", when(`"StringEqualsIgnoreCase":{"aws:ResourceTag/Kind":"Replica"}`), tags("replica"), true},
		{"StringEquals has no wildcards", when(`"StringEquals":{"aws:ResourceTag/Kind":"rep*"}`), tags("replica"), false},
		{"like", when(`"StringLike":{"aws:ResourceTag/Kind":["x","rep*"]}`), tags("replica"), true},
		{"a missing key", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica"}`), nil, false},
		{"a missing key with IfExists", when(`"StringEqualsIfExists":{"aws:ResourceTag/Kind":"replica"}`), nil, true},
		{"not equal, negated", when(`"StringNotEquals":{"aws:ResourceTag/Kind":"balancer"}`), tags("replica"), true},
		{"a missing key, negated", when(`"StringNotEquals":{"aws:ResourceTag/Kind":"balancer"}`), nil, true},
		{"a key that must be missing", when(`"Null":{"aws:ResourceTag/Kind":"true"}`), tags("replica"), false},
		{"a key that must be there", when(`"Null":{"aws:ResourceTag/Kind":"false"}`), tags("replica"), true},
		{"two conditions", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica"},"StringLike":{"aws:ResourceTag/Kind":"bal*"}`), tags("replica"), false},
		{"two keys of one condition", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica","aws:ResourceTag/Owner":"me"}`), tags("replica"), false},
		{"two values for one key: the caller's best counts", when(`"StringEquals":{"aws:ResourceTag/Kind":"replica"}`), tags("balancer", "replica"), true},

		{"all of several", when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","b"]}`), keys("a", "b"), true},
		{"not all of several", when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","b"]}`), keys("a", "c"), false},
		{"the case of several counts", when(`"ForAllValues:StringLike":{"aws:TagKeys":["a*"]}`), keys("ab", "Ab"), false},
		{"all of none", when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a"]}`), nil, true},
		{"any of several", when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["a"]}`), keys("c", "a"), true},
		{"any of none", when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["a"]}`), nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := readPolicy(tt.policy)
			if err != nil {
				t.Fatal(err)
			}
			if got := allowed([]iamPolicy{p}, iamRequest{"ec2:TerminateInstances", instance, tt.context}); got != tt.want {
				t.Errorf("allowed: %v, want %v", got, tt.want)
			}
		})
	}
}

// Unsupported elements are rejected, rather than allowed or denied by chance.
func TestReadPolicyRejectsUnsupported(t *testing.T) {
	for want, policy := range map[string]string{
		"Effect":             `{"Statement":[{"Effect":"allow","Action":"*","Resource":"*"}]}`,
		"Action":             `{"Statement":[{"Effect":"Allow","Resource":"*"}]}`,
		"Resource":           `{"Statement":[{"Effect":"Allow","Action":"*"}]}`,
		"Principal":          `{"Statement":[{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}]}`,
		"condition operator": `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}}]}`,
		"unknown field":      `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Conditions":{}}]}`,
	} {
		if _, err := readPolicy(policy); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %s", policy, err, want)
		}
	}
}

// IAM's wildcards match like their recursive definition.
func TestWildcardMatchesDefinition(t *testing.T) {
	var fits func(pattern, text string) bool
	fits = func(pattern, text string) bool {
		switch {
		case pattern == "":
			return text == ""
		case pattern[0] == '*':
			return fits(pattern[1:], text) || text != "" && fits(pattern, text[1:])
		}
		return text != "" && (pattern[0] == '?' || pattern[0] == text[0]) && fits(pattern[1:], text[1:])
	}
	var words func(letters string, n int) []string
	words = func(letters string, n int) []string {
		all := []string{""}
		if n == 0 {
			return all
		}
		for _, rest := range words(letters, n-1) {
			for _, l := range letters {
				all = append(all, string(l)+rest)
			}
		}
		return all
	}
	for _, pattern := range words("ab*?", 4) {
		for _, text := range words("ab", 4) {
			if got, want := wildcard(pattern, text), fits(pattern, text); got != want {
				t.Fatalf("%q matches %q: %v, want %v", text, pattern, got, want)
			}
		}
	}
}
