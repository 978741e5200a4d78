package main

import (
	"errors"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// aField is a word that may be the API's name of a setting.
var aField = regexp.MustCompile(`(config\.|policy\.)?[a-z]+(_[a-z]+)+|config\.[a-z]+`)

// aWord is a setting of one word, where a text says what it is.
var aWord = regexp.MustCompile(`\b(backoff|mode|replication)\b is\b`)

// otherFlags are the settings whose flag has not the field's name.
var otherFlags = map[string]string{
	"max_body_bytes":                 "max-body",
	"hold_limit":                     "hold-limit-age",
	"hold_limit_ms":                  "hold-limit-age",
	"refuse_publishes_at_hold_limit": "refuse-at-hold-limit",
}

// inFlags words a broker's refusal of a topic's or group's settings for who
// typed them: with the names of the command's flags, not those of the API.
func inFlags(cmd *cobra.Command, err error) error {
	var usage *usageError
	var refused *apiError
	switch {
	case errors.As(err, &usage):
		return &usageError{text: flagNames(cmd, usage.text), err: usage.err}
	case errors.As(err, &refused) && (refused.reason == "TOPIC_EXISTS" || refused.reason == "GROUP_EXISTS"):
		worded := *refused
		worded.text = flagNames(cmd, refused.text)
		return &worded
	}
	return err
}

// flagNames replaces the fields in a text that are flags of the command. What is
// in quotes is somebody's name and stays.
func flagNames(cmd *cobra.Command, text string) string {
	parts := strings.Split(text, `"`)
	for i := 0; i < len(parts); i += 2 {
		parts[i] = aField.ReplaceAllStringFunc(parts[i], func(word string) string {
			field := strings.TrimPrefix(strings.TrimPrefix(word, "config."), "policy.")
			name, ok := otherFlags[field]
			if !ok {
				name = strings.ReplaceAll(strings.TrimSuffix(field, "_ms"), "_", "-")
			}
			if cmd.Flags().Lookup(name) == nil {
				return word
			}
			return "--" + name
		})
		parts[i] = aWord.ReplaceAllStringFunc(parts[i], func(words string) string {
			if name, _, _ := strings.Cut(words, " "); cmd.Flags().Lookup(name) == nil {
				return words
			}
			return "--" + words
		})
	}
	return strings.Join(parts, `"`)
}

// flagFault words what the flag parser says of a number, which has names of Go in it.
func flagFault(text string) string {
	i := strings.Index(text, ": strconv.")
	switch {
	case i < 0:
		return text
	case strings.HasSuffix(text, "value out of range"):
		return text[:i] + ": the number is too large or too small"
	case strings.Contains(text[i:], "ParseBool"):
		return text[:i] + ": use true or false"
	}
	return text[:i] + ": it is no number of its kind"
}
