/* Parts that generators and batches share: ports, options and errors of texts. */

#ifndef TENON_TEXTS_H
#define TENON_TEXTS_H

#define TEXT_MESSAGE TenonMessage

#include "engine.h"
#include "text_generate.h"

const Port *tn_port_named(const Port *ports, int count, const char *name); /* or NULL */
/* The input that holds the extent of an axis; NULL if there is none. */
const Port *tn_extent_holder(const Binding *binding, const Port *port, int axis);
int tn_has_type(const Port *port, TenonType type, int rank); /* with so many axes at least */
/* The tables of an engine's bundle. */
TenonStatus tn_text_tables(const Engine *engine, TenonText *text);
/* The options of a call, and the sampling that they and the tables say. */
TenonStatus tn_text_options(const TenonText *text, const TenonTextOptions *given, TenonTextOptions *options,
                            TenonSampling *how);
long tn_most_tokens(const TenonTextOptions *options);
int tn_are_messages(const TenonMessage *messages, size_t count); /* none of them NULL */
/* Fail for a conversation that tenon_text_conversation refuses, a prompt, and a grammar. */
TenonStatus tn_no_conversation(const Engine *engine, long why);
TenonStatus tn_wrong_prompt(const Engine *engine, long context);
TenonStatus tn_wrong_grammar(const Engine *engine, const char *mistake, size_t at);

#endif
