package testcloud

import (
	"cmp"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// awsForm is a request in the query protocol: Filter.1.Value.2=x.
type awsForm map[string]string

func parseAWSForm(text string) (awsForm, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, err
	}
	f := awsForm{}
	for key := range values {
		f[key] = values.Get(key)
	}
	return f, nil
}

func (f awsForm) get(key string) string { return f[key] }

// number returns an integer, or 0 if the value is not one.
func (f awsForm) number(key string) int {
	n, _ := strconv.Atoi(f[key])
	return n
}

// sub returns the members of a structure: the keys that begin with prefix and a dot, without prefix and dot.
func (f awsForm) sub(prefix string) awsForm {
	sub := awsForm{}
	for key, value := range f {
		if rest, ok := strings.CutPrefix(key, prefix+"."); ok {
			sub[rest] = value
		}
	}
	return sub
}

// items returns the members of a list of structures, in order.
func (f awsForm) items(prefix string) []awsForm {
	var items []awsForm
	for i := 1; ; i++ {
		item := f.sub(prefix + "." + strconv.Itoa(i))
		if len(item) == 0 {
			return items
		}
		items = append(items, item)
	}
}

// list returns the members of a list of strings, in order.
func (f awsForm) list(prefix string) []string {
	var list []string
	for i := 1; ; i++ {
		value, ok := f[prefix+"."+strconv.Itoa(i)]
		if !ok {
			return list
		}
		list = append(list, value)
	}
}

// canonical returns the form as sorted text, without the keys in without. Two requests are equal if their
// texts are equal.
func (f awsForm) canonical(without ...string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if !slices.Contains(without, key) {
			b.WriteString(key + "=" + f[key] + "\n")
		}
	}
	return b.String()
}

// awsTags are the tags of a resource.
type awsTags map[string]string

// awsTag is a tag on the wire.
type awsTag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

// xmlTags returns the tags sorted by key.
func (t awsTags) xmlTags() []awsTag {
	var tags []awsTag
	for _, key := range slices.Sorted(maps.Keys(t)) {
		tags = append(tags, awsTag{key, t[key]})
	}
	return tags
}

// readTags reads a list of tags, Tag.1.Key or Tags.member.1.Key.
func (f awsForm) readTags(prefix string) awsTags {
	tags := awsTags{}
	for _, tag := range f.items(prefix) {
		tags[tag.get("Key")] = tag.get("Value")
	}
	return tags
}

// tagsFor returns the tags that a request sets on the resources of a type that it creates.
func (f awsForm) tagsFor(resource string) awsTags {
	for _, spec := range f.items("TagSpecification") {
		if spec.get("ResourceType") == resource {
			return spec.readTags("Tag")
		}
	}
	return awsTags{}
}

// attributes are the values that filters compare, by the filter's name; tags are tag:KEY.
type attributes map[string]string

func (t awsTags) addTo(f attributes) attributes {
	for key, value := range t {
		f["tag:"+key] = value
	}
	return f
}

// matches reports whether a resource passes all filters of a request. A filter for an unknown
// attribute, other than a tag, is an error: ignoring it would return resources that EC2 filters out.
func (f awsForm) matches(has attributes) (bool, error) {
	for _, filter := range f.items("Filter") {
		name := filter.get("Name")
		if name == "tag-key" {
			if !slices.ContainsFunc(filter.list("Value"), func(key string) bool { _, ok := has["tag:"+key]; return ok }) {
				return false, nil
			}
			continue
		}
		value, known := has[name]
		if !known && !strings.HasPrefix(name, "tag:") {
			return false, badRequest("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		if !known || !slices.ContainsFunc(filter.list("Value"), func(p string) bool { ok, err := path.Match(p, value); return err == nil && ok }) {
			return false, nil
		}
	}
	return true, nil
}

// filtered returns the elements of a map that pass a request's filters, sorted by id.
func filtered[T any](f awsForm, all map[string]T, has func(T) attributes) ([]T, error) {
	var some []T
	for _, id := range slices.SortedFunc(maps.Keys(all), cmp.Compare[string]) {
		ok, err := f.matches(has(all[id]))
		if err != nil {
			return nil, err
		}
		if ok {
			some = append(some, all[id])
		}
	}
	return some, nil
}
